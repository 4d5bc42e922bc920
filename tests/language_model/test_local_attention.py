"""Local attention: masks of ring buffers, and models whose caches overwrite positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from containers import language_parts
from every_backend import device_of, on_backends
from litegpu import LanguageModel, ModelError
from litegpu.language_model.masks import local
from litegpu.zoo.containers import Section, litertlm
from litegpu.zoo.writer import ModelWriter, TensorRef

CONTEXT, WINDOW, RING = 80, 26, 32
NAME = f"zoo:tiny_lm?layers=2&context={CONTEXT}&window={WINDOW}"
GLOBAL = f"zoo:tiny_lm?layers=2&context={CONTEXT}"
TOKENS = [1, *(5 + (7 * n * n + 3 * n) % 280 for n in range(CONTEXT - 1))]
ENDS = (3, 4, 12, 45, 46, 77, 80)
"""The lengths at which logits are compared: chunks of each prefill, whole and padded."""
LIMIT = 1e-4
Logits = npt.NDArray[np.float32]


@pytest.mark.parametrize(("begin", "count"), [(0, 5), (3, 1), (7, 4), (8, 3), (21, 8), (30, 1)])
@pytest.mark.parametrize("window", [1, 5, 8])
def test_a_mask_shows_the_tokens_of_the_window(begin: int, count: int, window: int) -> None:
    ring = 8
    positions = np.arange(begin, begin + count)
    cache = {position % ring: position for position in range(begin)}
    found = local(positions, ring, ring + count, window)
    columns = [*(cache.get(slot, -1) for slot in range(ring)), *positions]
    for row, position in enumerate(positions):
        expected = [0 <= each <= position and each > position - window for each in columns]
        assert [*found[row]] == expected
    if count == 1:
        cache[begin % ring] = begin
        columns = [cache.get(slot, -1) for slot in range(ring)]
        expected = [each >= 0 and each > begin - window for each in columns]
        assert [*local(positions, ring, ring, window)[0]] == expected


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with LanguageModel(NAME, backend="cpu") as found:
        yield found


def logits_of(model: LanguageModel, tokens: Sequence[int], ends: Sequence[int]) -> list[Logits]:
    """Return the logits after each number of tokens, computed in one session."""
    found = []
    with model.session() as session:
        for end in ends:
            session.append(tokens[len(session.tokens) : end])
            found.append(session.logits())
    return found


@pytest.fixture(scope="module")
def expected(model: LanguageModel) -> list[Logits]:
    """The logits after each token: every token is a run of `decode`."""
    return logits_of(model, TOKENS, range(1, CONTEXT + 1))


def test_prefills_are_as_single_tokens(model: LanguageModel, expected: list[Logits]) -> None:
    """A prefill reads the ring buffer before its own tokens are stored, decode after that."""
    found = logits_of(model, TOKENS, ENDS)
    np.testing.assert_allclose(found, [expected[end - 1] for end in ENDS], atol=LIMIT)


def test_a_window_of_all_tokens_is_global_attention(
    model: LanguageModel, expected: list[Logits]
) -> None:
    with LanguageModel(GLOBAL, backend="cpu") as other:
        wanted = logits_of(other, TOKENS, [WINDOW, WINDOW + 4])
    np.testing.assert_allclose(expected[WINDOW - 1], wanted[0], atol=LIMIT)
    assert np.abs(expected[WINDOW + 3] - wanted[1]).max() > 0.01


@on_backends(("opencl", "webgpu"))
def test_devices_forks_and_rewinds(backend: str, expected: list[Logits]) -> None:
    device_of(backend)
    with LanguageModel(NAME, backend=backend, min_nodes_per_partition=1) as model:
        assert all(model._executor.model.runs_directly(n) for n in range(3))
        found = logits_of(model, TOKENS, ENDS)
        np.testing.assert_allclose(found, [expected[end - 1] for end in ENDS], atol=LIMIT)
        with model.session() as session:
            session.append(TOKENS[:50])
            session.logits()
            with session.fork() as other:
                other.append(TOKENS[50:70])
                np.testing.assert_allclose(other.logits(), expected[69], atol=LIMIT)
            session.append(TOKENS[50:53])
            np.testing.assert_allclose(session.logits(), expected[52], atol=LIMIT)
            session.rewind(40)
            session.append(TOKENS[40:42])
            np.testing.assert_allclose(session.logits(), expected[41], atol=LIMIT)


def test_only_caches_that_overwrite_positions_exist_twice(model: LanguageModel) -> None:
    with model.session() as session, mock.patch("litegpu.language_model.session.Session.close"):
        caches = session._caches
    twice = {name for name in caches.present if caches.present[name] is not caches.following[name]}
    assert twice == {"kv_cache_k_0", "kv_cache_v_0"}


def test_no_prefill_is_longer_than_a_ring_buffer() -> None:
    name = NAME.replace(f"window={WINDOW}", "window=10")
    with LanguageModel(name, backend="cpu") as model:
        chosen = [model._executor.prefill_of(count, 0).count for count in (1, 6, 40)]
        found = logits_of(model, TOKENS, [40, 60])
        wanted = logits_of(model, TOKENS, range(1, 61))
    assert chosen == [1, 8, 8]
    np.testing.assert_allclose(found, [wanted[39], wanted[59]], atol=LIMIT)


def test_files_without_metadata(expected: list[Logits], tmp_path: Path) -> None:
    """The window is then the ring buffer's size, and prompts of tokens are not padded."""
    content = language_parts(NAME)[-1]
    (tmp_path / "model.tflite").write_bytes(content)
    with LanguageModel(tmp_path / "model.tflite", backend="cpu") as model:
        assert model._executor.prefill_of(10, 0).count == 8
        assert model._executor.prefill_of(7, 0).count == 1
        found = logits_of(model, TOKENS, [20, 50])
    np.testing.assert_allclose(found[0], expected[19], atol=LIMIT)
    assert np.abs(found[1] - expected[49]).max() > 1e-3
    metadata = language_parts(NAME.replace(f"window={WINDOW}", "window=32"))[1]
    file = tmp_path / "model.litertlm"
    file.write_bytes(litertlm([Section(metadata, 9, ""), Section(content)]))
    with LanguageModel(file, backend="cpu") as model:
        np.testing.assert_allclose(logits_of(model, TOKENS, [50])[0], found[1], atol=LIMIT)


Inputs = Mapping[str, tuple[tuple[int, ...], str]]


def decoder(*signatures: tuple[str, int, Inputs], longer: Mapping[str, int] | None = None) -> bytes:
    """Return a model of signatures (name, tokens, masks) whose cache has 8 positions.

    `longer` are the positions of the caches of some signatures.
    """
    writer = ModelWriter()
    for number, (name, count, masks) in enumerate(signatures):
        positions = (longer or {}).get(name, 8)
        graph = writer.subgraph() if number else writer
        inputs: dict[str, TensorRef] = {
            "cache": graph.input((1, 1, positions, 4), name="c"),
            "tokens": graph.input((1, count), "int32", name="t"),
        }
        for key, (shape, dtype) in masks.items():
            inputs[key] = graph.input(shape, dtype, name=key)
        cache, logits = (
            graph.op(name, [inputs["cache"]], [(1, 1, positions, 4)]) for name in ("ABS", "NEG")
        )
        outputs = {"cache": cache, **({"logits": logits} if count == 1 else {})}
        graph.output(*outputs.values())
        graph.signature(name, inputs, outputs)
    return writer.build()


def masks(count: int, **columns: int) -> Inputs:
    return {name: ((1, 1, count, width), "float32") for name, width in columns.items()}


ROLES: tuple[tuple[tuple[tuple[str, int, Inputs], ...], tuple[str, str, int]], ...] = (
    # The names say the opposite: the columns of several signatures decide.
    ((("p", 4, masks(4, a=8, b=12)), ("d", 1, masks(1, a=8, b=8))), ("a", "b", 8)),
    ((("p", 4, masks(4, a=10, b=8)), ("d", 1, masks(1, a=6, b=8))), ("b", "a", 6)),
    ((("p", 4, masks(4, a=10, b=8)), ("d", 1, masks(1, a=7, b=8))), ("b", "a", 6)),
    ((("d", 1, masks(1, a=6, b=8)),), ("b", "a", 6)),
    ((("d", 1, masks(1, m_local=8, b=8)),), ("b", "m_local", 8)),
    ((("d", 1, masks(1, a=8)),), ("a", "", 0)),
    ((("d", 1, {"a": ((1, 1, 1, 8), "bool")}),), ("a", "", 0)),
    ((("p", 4, masks(4, a=10)), ("d", 1, masks(1, a=6))), ("", "a", 6)),
)


@pytest.mark.parametrize(("signatures", "roles"), ROLES, ids=range(len(ROLES)))
def test_masks_are_told_apart_by_their_columns(
    signatures: tuple[tuple[str, int, Inputs], ...], roles: tuple[str, str, int], tmp_path: Path
) -> None:
    (tmp_path / "model.tflite").write_bytes(decoder(*signatures))
    with LanguageModel(tmp_path / "model.tflite", backend="cpu") as model:
        for step in model._executor.prefills:
            assert (step.mask, step.local_mask, step.ring) == roles


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"a": 8, "b": 8}, "two masks of 8 columns, a and b. Name the mask for local"),
        ({"local_a": 8, "local_b": 8}, "two masks of 8 columns, local_a and local_b. Name the"),
        ({"a": 8, "b": 8, "c": 9}, "'d' takes 'c float32 .1, 1, 1, 9.', but litegpu supports only"),
    ],
)
def test_masks_that_cannot_be_told_apart(
    columns: dict[str, int], text: str, tmp_path: Path
) -> None:
    (tmp_path / "model.tflite").write_bytes(decoder(("d", 1, masks(1, **columns))))
    with pytest.raises(ModelError, match=text):
        LanguageModel(tmp_path / "model.tflite", backend="cpu")


def test_two_local_masks_are_an_error(tmp_path: Path) -> None:
    content = decoder(("p", 4, masks(4, a=10, b=8)), ("d", 1, masks(1, a=6, b=4)))
    (tmp_path / "model.tflite").write_bytes(content)
    with pytest.raises(
        ModelError, match=r"'p' has two masks for local attention, a and b. litegpu"
    ):
        LanguageModel(tmp_path / "model.tflite", backend="cpu")


def test_signatures_that_cannot_be_run_are_left_out(tmp_path: Path) -> None:
    """Weights of an adapter are unknown inputs; shorter caches are another set."""
    adapter = {**masks(1, mask=8), "lora_a": ((2, 2), "float32")}
    content = decoder(
        ("d_lora", 1, adapter), ("d", 1, masks(1, mask=8)), ("p", 4, masks(4, mask=8))
    )
    (tmp_path / "model.tflite").write_bytes(content)
    with LanguageModel(tmp_path / "model.tflite", backend="cpu") as model:
        assert [each.key for each in model._executor.prefills] == ["d", "p"]
    wide = [(f"{name}16", count, masks(count, mask=16)) for name, count in (("p", 4), ("d", 1))]
    content = decoder(("d", 1, masks(1, mask=8)), *wide, longer={"p16": 16, "d16": 16})
    (tmp_path / "model.tflite").write_bytes(content)
    with LanguageModel(tmp_path / "model.tflite", backend="cpu") as model:
        assert [each.key for each in model._executor.prefills] == ["d16", "p16"]
        assert model.context == 16
    (tmp_path / "model.tflite").write_bytes(decoder(("d_lora", 1, adapter)))
    with pytest.raises(ModelError, match=r"'d_lora' takes 'lora_a float32 .2, 2.', but litegpu"):
        LanguageModel(tmp_path / "model.tflite", backend="cpu")
