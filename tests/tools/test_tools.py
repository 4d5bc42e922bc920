"""The tools on a real device, with small models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import litegpu
from litegpu import zoo
from litegpu.backends import BackendStatus
from litegpu.tools import cli, demo, measure, run
from litegpu.tools.measure import Latency
from litegpu.tools.models import KNOWN
from litegpu.tools.picture_flag import (
    default_picture,
)
from real_models import find
from small_models import CPU_ONLY, chain, encode_and_decode

SMALL = "zoo:mobilenet_v1_0.25_128"
NOTHING = BackendStatus("opencl", (), "There is no driver. Install one.", "apt install it")


def test_run_times_the_best_code(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    time_invokes = measure.time_invokes

    def timed(interpreter: Any, runs: int, max_secs: float, label: str) -> Latency:
        steps.append(label)
        return time_invokes(interpreter, runs, max_secs, label)

    def waited(_: litegpu.GpuDelegate) -> bool:
        steps.append("waited")
        return True

    monkeypatch.setattr(run, "time_invokes", timed)
    monkeypatch.setattr(litegpu.GpuDelegate, "wait_for_best_code", waited)
    assert cli.main(["run", SMALL, "--num_runs=1"]) == 0
    assert steps == ["waited", "GPU", "CPU"]


def test_devices_lists_every_usable_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for device in litegpu.list_devices():
        assert device.backend in text
        assert device.name.split()[0] in text


def test_devices_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices", "--json"]) == 0
    listed = [device for each in json.loads(capsys.readouterr().out) for device in each["devices"]]
    listed.sort(key=lambda device: device["number"])
    expected = [device.to_dict() for device in litegpu.list_devices()]
    assert listed == [{**device, "number": index} for index, device in enumerate(expected)]


def test_devices_says_why_there_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("litegpu.backends.status", lambda: [NOTHING])
    assert cli.main(["devices"]) == 1
    expected = "opencl: no usable device. There is no driver. Install one.\n"
    assert capsys.readouterr().out == expected


def test_commands_to_type_are_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = "pip install 'litegpu[opencl]'"
    for length in range(40, 80):
        reason = f"{'x' * length}. Type: {remedy} and wait."
        status = BackendStatus("opencl", (), reason, remedy)
        monkeypatch.setattr("litegpu.backends.status", lambda status=status: [status])
        assert cli.main(["devices"]) == 1
        assert remedy in capsys.readouterr().out


def test_check_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", SMALL, "--precision=fp16"]) == 0
    text = capsys.readouterr().out
    assert "31 operations will run on the GPU, and the remaining 0" in text
    assert "fp16" in text


def test_check_as_json_has_reasons_partitions_and_memory(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "partly.tflite"
    path.write_bytes(chain(["ABS", "NEG", CPU_ONLY]))
    assert cli.main(["check", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    report = result["report"]
    assert result["model"] == str(path)
    rejected = report["rejected"]
    assert [node["op"] for node in rejected] == [CPU_ONLY]
    assert rejected[0]["reason"]
    part = report["partitions"][0]
    assert len(part["nodes"]) == report["total_nodes"] - 1
    assert part["arena_bytes"] >= part["lower_bound_bytes"] > 0


def test_nothing_on_the_gpu_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "litegpu.tools.check.model_check.with_delegate", lambda *given, **options: None
    )
    assert cli.main(["check", SMALL, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "model": SMALL,
        "type": "float32",
        "report": None,
        "runtime": None,
    }
    assert cli.main(["check", SMALL]) == 1
    assert "The delegate was not applied" in capsys.readouterr().out


def test_run_shows_classes_latency_and_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"name {number}" for number in range(1001)))
    argv = ["run", SMALL, "--image", default_picture(), f"--labels={labels}", "--num_runs=2"]
    assert cli.main(argv) == 0
    text = capsys.readouterr().out
    assert "31 operations will run on the GPU" in text
    assert len(re.findall(r" name \d+", text)) == 5
    assert "CPU (XNNPACK, threads: " in text
    agreement = next(line for line in text.splitlines() if line.endswith("yes"))
    assert float(agreement.split()[1]) < 1e-5


def test_run_summarises_other_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "zoo:posenet_mobilenet_v1_257?size=65", "--num_runs=1"]) == 0
    text = capsys.readouterr().out
    assert "mean" in text
    assert "float32" in text


def test_run_without_an_image_input_refuses_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("litegpu.tools.viewer.is_image_input", lambda detail: False)
    assert cli.main(["run", SMALL, "--image", default_picture()]) == 2
    error = capsys.readouterr().err
    assert "no input of this model takes a picture; their shapes are [1, 128, 128, 3]" in error


def test_a_model_that_the_cpu_refuses_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise litegpu.ModelError("unresolved custom op.")

    monkeypatch.setattr("litegpu.tools.run.interpreter", refuse)
    assert cli.main(["run", SMALL, "--num_runs=1"]) == 0
    captured = capsys.readouterr()
    assert "No comparison with the CPU: unresolved custom op." in captured.err
    assert "XNNPACK" not in captured.out


@pytest.mark.parametrize(
    ("flag", "status", "message"),
    [
        ("--backend=opengel", 2, "Unknown backend 'opengel'"),
        ("--precision=fp8", 2, "Unknown precision 'fp8'"),
        ("--device=99", 1, "No device matches '99'"),
        ("--device=quantum", 1, "No device matches 'quantum'"),
    ],
)
def test_impossible_wishes_are_named(
    flag: str, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", SMALL, flag]) == status
    assert message in capsys.readouterr().err


@pytest.fixture
def small_stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes the demo's two models small ones of the zoo, and an empty folder the current one."""
    monkeypatch.setattr(demo, "CLASSIFIER", SMALL)
    monkeypatch.setattr(demo, "SEGMENTER", "zoo:deeplab_v3_257?size=65")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_writes_the_segmentation(
    small_stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--num_runs=1"]) == 0
    drawing = Image.open(small_stand_ins / "out" / "segmentation.png")
    assert drawing.height == demo.DRAWING_WIDTH
    assert drawing.width > demo.DRAWING_WIDTH
    assert len(np.unique(np.asarray(drawing))) > 100
    text = capsys.readouterr().out
    assert "Classification with zoo:" in text
    assert "Segmentation with zoo:" in text
    assert "The segmentation is in out" in text


def test_the_demo_names_a_place_it_cannot_write_to(
    small_stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_stand_ins / "file").touch()
    assert cli.main(["demo", "--num_runs=1", "--output=file/picture.png"]) == 1
    captured = capsys.readouterr()
    assert "the file cannot be written: " in captured.err
    assert captured.out == "", "it is tried before the work"


def test_the_demo_knows_its_models() -> None:
    assert KNOWN[demo.CLASSIFIER].stand_in
    assert KNOWN[demo.SEGMENTER].stand_in


def test_the_demo_needs_no_place_to_write_to(
    small_stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_stand_ins / "out").touch()
    assert cli.main(["demo", "--num_runs=1"]) == 0
    captured = capsys.readouterr()
    assert "No picture is drawn: --output=out/segmentation.png: the file cannot" in captured.err
    assert "The segmentation is in" not in captured.out


def test_answers_of_random_weights_mean_nothing(
    small_stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a copy of a file of the zoo, too."""
    said = "The weights are random: times are realistic, but results have no meaning."
    (small_stand_ins / "copy.tflite").write_bytes(zoo.load("zoo:mobilenet_v1_0.25_128"))
    assert cli.main(["run", "copy.tflite", f"--image={default_picture()}", "--num_runs=1"]) == 0
    assert said in capsys.readouterr().out
    assert cli.main(["run", "copy.tflite", "--num_runs=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["random_weights"] is True
    assert cli.main(["demo", "--num_runs=1"]) == 0
    assert capsys.readouterr().out.count(said) == 2


@pytest.mark.real_model
def test_real_models_recognise_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find(demo.SEGMENTER)
    assert cli.main(["demo", "--num_runs=1", f"--output={tmp_path / 'out.png'}"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ +1 +0\.7\d+ +653( +military uniform)?$", text, re.MULTILINE)
    assert re.search(r"^person +6\d\.\d%$", text, re.MULTILINE)


@pytest.mark.parametrize(("key", "least"), [("encode", 0.0), ("decode", 0.2)])
def test_a_signature_is_run(
    key: str, least: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one has a graph of its own; a picture is shown to both."""
    path = tmp_path / "signed.tflite"
    path.write_bytes(encode_and_decode())
    command = [
        "run",
        str(path),
        f"--signature={key}",
        "--num_runs=1",
        "--max_delegated_partitions=9",
    ]
    assert cli.main([*command, "--json", f"--image={default_picture()}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outputs"][0]["min"] >= least and found["agreement"][0]["relative_l2"] < 1e-5
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert "delegate (nothing on the GPU)" not in text
    assert cli.main([*command[:2], "--signature=encoder"]) == 1
    error = capsys.readouterr().err
    assert "--signature=encoder: there is no such signature. Did you mean 'encode'?" in error
    if key == "decode":
        picture = [f"--image={default_picture()}", "--task=image"]
        assert cli.main([*command, *picture]) == 2
        assert "can be determined only for the model's first graph" in capsys.readouterr().err
