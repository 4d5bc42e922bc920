"""`litegpu delegates`: both tables, and the recommendation with its reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from litegpu import GpuDelegate, zoo
from litegpu.errors import UnsupportedDeviceError
from litegpu.tools import cli, delegates, registrar
from litegpu.tools.delegates import recommend
from litegpu.zoo import kinds
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, WHY_ON_CPU, chain

SMALL = "zoo:mobilenet_v1_0.25_128"


def table(text: str, head: str) -> dict[str, list[str]]:
    """Return the rows of the table that begins with `head`, by their first cells."""
    body = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell for cell in line.split("   ") if cell] for line in body]
    return {first.strip(): [each.strip() for each in rest] for first, *rest in cells}


def test_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["delegates"]) == 0
    text = capsys.readouterr().out
    by_platform = table(text, "delegate ")
    assert [*by_platform] == ["GPU", "XNNPACK", "NNAPI", "Hexagon", "Core ML", "external"]
    with GpuDelegate() as gpu:
        kind = " (software)" if gpu.device.software else ""
        assert by_platform["GPU"][1:3] == ["yes", f"{gpu.device.title}{kind}"]
    assert by_platform["NNAPI"][1:] == ["no", f"not on {registrar.platform()}", "--use_nnapi=true"]
    by_type = table(text, "type of model")
    assert [*by_type] == [*kinds.KINDS]
    assert by_type["float32"][:2] == by_type["float16 weights"][:2] == ["yes", "yes"]
    assert by_type["integer"][2:] == ["yes", "yes", "no"]
    assert "recommended" not in text


def test_what_the_gpu_takes_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "sample", lambda _: chain([CPU_ONLY]))
    with GpuDelegate() as gpu:
        assert delegates._gpu_entry(gpu, "").takes == ()
    monkeypatch.setattr(kinds, "sample", lambda _: chain(["ABS"]))
    with GpuDelegate() as gpu:
        assert delegates._gpu_entry(gpu, "").takes == kinds.KINDS


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(kinds.sample(kinds.TRAINED))
    assert cli.main(["delegates", f"--graph={path}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["delegates"]][:2] == ["GPU", "XNNPACK"]
    assert (found["model"]["source"], found["model"]["type"]) == (str(path), kinds.TRAINED)
    assert found["model"]["recommended"]["flag"] == "--use_xnnpack=true"


def test_a_missing_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["delegates", "missing.tflite"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "missing.tflite" in captured.err


def take_for(monkeypatch: pytest.MonkeyPatch, *, software: bool) -> None:
    """Have the device say what it is not."""
    device = GpuDelegate.device.fget  # type: ignore[attr-defined]
    found = property(lambda self: dataclasses.replace(device(self), software=software))
    monkeypatch.setattr(GpuDelegate, "device", found)


def test_a_model_on_a_software_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take_for(monkeypatch, software=True)
    assert cli.main(["delegates", SMALL]) == 0
    text = capsys.readouterr().out
    assert "float32 (this model)" in text
    assert "recommended: XNNPACK, on the CPU (--use_xnnpack=true)." in " ".join(text.split())
    assert "is not a GPU but a GPU interface to the CPU." in " ".join(text.split())


def test_a_gpu_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    take_for(monkeypatch, software=False)
    with GpuDelegate() as gpu:
        advice = recommend(zoo.load("zoo:mobilenet_v1_1.0_224"), gpu, "")
    assert (advice.name, advice.flag) == ("GPU", "--use_gpu=true")
    assert advice.reason.startswith("31 of 31 operations run on it, in about ")


def test_a_gpu_that_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    take_for(monkeypatch, software=False)
    with GpuDelegate() as gpu:
        advice = recommend(chain(["ABS"]), gpu, "")
    assert advice.flag == "--use_xnnpack=true"
    assert (
        "is slower if copies are included: 1 of 1 operations run on it, in about" in advice.reason
    )


def test_a_model_that_the_gpu_cannot_run() -> None:
    with GpuDelegate() as gpu:
        advice = recommend(chain([CPU_ONLY]), gpu, "")
    said = f"The GPU would run no operation of the model. {CPU_ONLY}: {WHY_ON_CPU}"
    assert advice.reason == said


def test_a_machine_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> NoReturn:
        raise UnsupportedDeviceError("No backend has a device.")

    monkeypatch.setattr(delegates, "GpuDelegate", refuse)
    assert cli.main(["delegates", SMALL, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["delegates"][0]["here"], found["delegates"][0]["takes"]) == (False, [])
    reason = found["model"]["recommended"]["reason"]
    assert reason == "There is no usable GPU: No backend has a device."


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_the_type_of_a_model(kind: str) -> None:
    assert kinds.kind_of(kinds.sample(kind)) == kind


def test_the_type_of_models_without_weights() -> None:
    assert kinds.kind_of(chain(["ABS"])) == kinds.FLOAT32
    writer = ModelWriter()
    x = writer.input((1, 4))
    options = {"min": -1.0, "max": 1.0, "num_bits": 8}
    writer.output(writer.op("FAKE_QUANT", [x], [(1, 4)], options=options))
    assert kinds.kind_of(writer.build()) == kinds.TRAINED
