"""What `litegpu check` says of quantized models: how they are stored, what each way could run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from litegpu.errors import MissingDependencyError
from litegpu.graph import Quantization
from litegpu.tools import cli
from litegpu.zoo import kinds
from litegpu.zoo.writer import ModelWriter
from small_models import chain

HALF = Quantization((0.05,), (3,))


def hybrid() -> bytes:
    """Return a model of float data and int8 weights."""
    writer = ModelWriter()
    x = writer.input((2, 8))
    params = writer.constant(np.ones((5, 8), np.int8), quantization=Quantization((0.02,), (0,)))
    writer.output(writer.op("FULLY_CONNECTED", [x, params], [(2, 5)], version=3))
    return writer.build()


def check(content: bytes, folder: Path, *flags: str) -> tuple[int, Path]:
    path = folder / "model.tflite"
    path.write_bytes(content)
    return cli.main(["check", str(path), *flags]), path


def test_both_ways_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = check(kinds.sample(kinds.INTEGER), tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert status == 0
    assert "quantized: integer" in said
    assert 'quantized="exact": 1 of 1 nodes, in their integers, equal to the CPU\'s' in said
    assert 'quantized="float": 1 of 1 nodes, as real numbers' in said
    assert said.index('"exact"') < said.index('"float"')


def test_nothing_more_is_promised_of_floats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(hybrid(), tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 nodes, floats rounded to bytes where weights are" in said
    assert "1 of 1 nodes, weights as real numbers" in said
    assert "every bit" not in said


def test_the_chosen_way_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(kinds.sample(kinds.INTEGER), tmp_path, "--quantized=float")
    said = capsys.readouterr().out
    assert said.index('"float"') < said.index('"exact"')


def test_models_without_quantized_tensors_say_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(chain(["ABS"]), tmp_path)
    assert "quantized" not in capsys.readouterr().out


def test_the_file_has_the_type_and_all_reasons(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    check(hybrid(), tmp_path, "--quantized=float", f"--json={path}")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["type"] == kinds.DYNAMIC
    (chosen, other) = found["report"]["quantized"]
    assert (chosen["mode"], chosen["nodes"], chosen["rejected"]) == ("float", 1, [])
    assert other["mode"] == "exact"
    assert other["nodes"] + len(other["rejected"]) == 1


def test_without_the_library_that_reads_files_the_type_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = kinds.sample(kinds.INTEGER)

    def missing(_content: bytes) -> str:
        raise MissingDependencyError("flatbuffers is not installed")

    monkeypatch.setattr(kinds, "kind_of", missing)
    check(content, tmp_path)
    said = capsys.readouterr().out
    assert "quantized: (pip install 'litegpu[zoo]' to see how)" in said
    assert 'quantized="exact"' in said
