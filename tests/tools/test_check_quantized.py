"""`litegpu check` on quantized models: their storage, and the nodes that each mode can run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import litegpu
from litegpu import ModelCheck, OptionsError
from litegpu.errors import MissingDependencyError, ModelError
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
    assert 'quantized="exact": 1 of 1 nodes, in integers, equal to the CPU\'s' in said
    assert 'quantized="float": 1 of 1 nodes, in float32, with results rounded' in said
    assert said.index('"exact"') < said.index('"float"')


def test_nothing_more_is_promised_of_floats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(hybrid(), tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 nodes, float inputs quantized to int8 for quantized weights" in said
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


def test_the_tool_prints_what_python_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    written = tmp_path / "found.json"
    status, path = check(hybrid(), tmp_path, "--precision=fp16", f"--json={written}")
    said = capsys.readouterr().out
    found = litegpu.check(path, precision="half")
    assert status == 0 and said == f"{found}\n"
    data = json.loads(written.read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(found.to_dict()))
    html = found._repr_html_()
    assert f"{path}, dynamic range" in html and "weights as real numbers" in html
    assert found.report is not None and found.report.summary() in html
    of_bytes = litegpu.check(path.read_bytes())
    assert of_bytes.model.endswith(" of bytes") and of_bytes.kind == kinds.DYNAMIC
    with pytest.raises(ModelError, match="does not exist"):
        litegpu.check(tmp_path / "none.tflite")
    with pytest.raises(
        ModelError, match="The runtime itself, without litegpu, rejects this model while loading"
    ):
        litegpu.check(b"TFL3")
    with pytest.raises(OptionsError, match="Unknown precision 'fp8'"):
        litegpu.check(path, precision="fp8")  # type: ignore[arg-type]


def test_a_delegate_that_was_not_applied() -> None:
    found = ModelCheck("model.tflite", None, None)
    text = "The delegate was not applied: the whole model runs on the CPU."
    assert str(found) == text and text in found._repr_html_()
    assert found.to_dict() == {
        **{"model": "model.tflite", "type": None, "report": None, "runtime": None}
    }


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
