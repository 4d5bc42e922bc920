"""Weights outside of a model's tables: in sections, other files, and after the tables."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from containers import language_parts
from every_backend import device_of
from litegpu import LanguageModel, LitegpuError, ModelError
from litegpu.runtime_abi.outside_weights import TablesOnly, tables_only
from litegpu.zoo.containers import Section, litertlm
from outside_weights import appended, external, moved

NAME = "zoo:tiny_lm?layers=1&context=64&embedder=1"
GIB = 1 << 30
TOKENS = [1, *range(40, 70)]
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def parts() -> tuple[bytes, bytes]:
    """The main model and its embedder."""
    main, embedder = language_parts(NAME)[-2:]
    return main, embedder


def logits(path: Path, backend: str = "cpu") -> Logits:
    """Return the logits after a prompt of two prefills."""
    with LanguageModel(path, backend=backend) as model, model.session() as session:
        assert backend == "cpu" or model._executor.model.runs_directly(0)
        session.append(TOKENS)
        return session.logits()


@pytest.fixture(scope="module")
def expected(parts: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory) -> Logits:
    path = tmp_path_factory.mktemp("whole") / "model.litertlm"
    path.write_bytes(
        litertlm([Section(parts[0]), Section(parts[1], model_type="tf_lite_embedder")])
    )
    return logits(path)


def sections(parts: tuple[bytes, bytes]) -> list[Section]:
    """Return the sections of a file in which both models have separate weights."""
    found = []
    for content, kind in zip(parts, ("tf_lite_prefill_decode", "tf_lite_embedder"), strict=True):
        model, weights = external(content)
        assert len(model) < len(content) / 2 < len(weights)
        found += [Section(weights, 7, kind), Section(model, model_type=kind)]
    return found


@pytest.mark.parametrize("backend", ["cpu", "opencl"])
def test_sections_of_weights(
    backend: str, parts: tuple[bytes, bytes], expected: Logits, tmp_path: Path
) -> None:
    if backend != "cpu":
        device_of(backend)
    (tmp_path / "model.litertlm").write_bytes(litertlm(sections(parts)))
    np.testing.assert_allclose(logits(tmp_path / "model.litertlm", backend), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["weights.bin", "parts/weights.bin"])
def test_files_beside_a_model(name: str, tmp_path: Path) -> None:
    plain = language_parts("zoo:tiny_lm?layers=1&context=64")[-1]
    (tmp_path / "plain.tflite").write_bytes(plain)
    model, weights = external(plain, name)
    (tmp_path / "model.tflite").write_bytes(model)
    with pytest.raises(ModelError, match=r"'.*bin', which cannot be read .*into the same folder"):
        LanguageModel(tmp_path / "model.tflite", backend="cpu")
    (tmp_path / "parts").mkdir()
    (tmp_path / name).write_bytes(weights)
    wanted = logits(tmp_path / "plain.tflite")
    np.testing.assert_array_equal(logits(tmp_path / "model.tflite"), wanted)
    (tmp_path / "all.tflite").write_bytes(appended(plain))
    np.testing.assert_array_equal(logits(tmp_path / "all.tflite"), wanted)
    (tmp_path / "all.litertlm").write_bytes(litertlm([Section(appended(plain))]))
    for path in ("all.litertlm", "all.litertlm:prefill_decode.tflite"):
        np.testing.assert_array_equal(logits(tmp_path / path), wanted)


def test_files_of_more_than_4_gib_are_not_read_whole(
    parts: tuple[bytes, bytes], expected: Logits, tmp_path: Path
) -> None:
    """The files have holes: only the pages with weights exist."""
    model, weights = external(parts[0], begin=GIB // 2)
    place = 5 * GIB
    listed = [
        Section(parts[1], model_type="tf_lite_embedder"),
        Section(model),
        Section(b"", 7, begin=place, end=place + GIB // 2 + len(weights)),
    ]
    files = tmp_path / "model.litertlm", tmp_path / "model.tflite"
    whole = appended(language_parts("zoo:tiny_lm?layers=1&context=64")[-1])
    tables = moved(whole, place)
    contents = (litertlm(listed), place + GIB // 2, weights), (tables, place, whole)
    for path, (content, begin, rest) in zip(files, contents, strict=True):
        with path.open("wb") as file:
            file.write(content)
            skipped = len(tables) if path.suffix == ".tflite" else 0
            file.seek(begin + skipped)
            file.write(rest[skipped:])
        assert path.stat().st_size > place
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    np.testing.assert_allclose(logits(files[0]), expected, atol=1e-5)
    assert logits(files[1]).shape == expected.shape
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) << 10 < GIB


def test_sections_without_their_weights(parts: tuple[bytes, bytes], tmp_path: Path) -> None:
    model, weights = external(parts[0])
    other, _ = external(parts[0], "other")
    embedder = Section(parts[1], model_type="tf_lite_embedder")
    for listed in (
        [Section(model), embedder],
        [Section(model), Section(weights, 7, "tf_lite_embedder"), embedder],
        [Section(other), Section(weights, 7), embedder],
    ):
        (tmp_path / "model.litertlm").write_bytes(litertlm(listed))
        with pytest.raises(ModelError, match=r"has its weights in '.*no such weights for it.*Conv"):
            LanguageModel(tmp_path / "model.litertlm", backend="cpu")


@pytest.mark.parametrize("name", ["../weights.bin", "/etc/passwd", ""])
def test_files_outside_of_the_folder(name: str, tmp_path: Path) -> None:
    plain = language_parts("zoo:tiny_lm?layers=1&context=32")[-1]
    (tmp_path / "inner").mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 20))
    (tmp_path / "inner" / "model.tflite").write_bytes(external(plain, name)[0])
    with pytest.raises(ModelError, match=r"which is not in its folder. Convert the model again"):
        LanguageModel(tmp_path / "inner" / "model.tflite", backend="cpu")


def test_damaged_files_have_typed_errors(parts: tuple[bytes, bytes], tmp_path: Path) -> None:
    """Damaged tables of models with outside weights are an error, or a model."""
    dice, path = random.Random(7), tmp_path / "model.litertlm"
    model, weights = external(parts[0])
    whole = appended(parts[0])
    rejected = 0
    for number in range(60):
        content = bytearray(whole if number % 2 else model)
        end = len(content) - (len(weights) if number % 2 else 0)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(end // 4) * 4
            content[at : at + 4] = dice.randrange(1 << 32).to_bytes(4, "little")
        content[4:8] = b"TFL3"
        path.write_bytes(litertlm([Section(bytes(content)), Section(weights, 7)]))
        try:
            tables_only(memoryview(content), lambda _: memoryview(weights))
        except LitegpuError:
            rejected += 1
    assert 5 < rejected < 60
    assert isinstance(tables_only(memoryview(model), lambda _: memoryview(weights)), TablesOnly)
