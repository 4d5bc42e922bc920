"""`litegpu run --output`: from the command line to the drawing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import MissingDependencyError, ModelError
from litegpu.files import metadata
from litegpu.graph.ir import Quantization
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools import cli
from litegpu.tools.drawing.ink import colour
from litegpu.tools.viewer import Viewer
from litegpu.zoo.writer import ModelWriter
from seeing_models import detector, finder, saying, seen, view_args
from small_models import fully_convolutional

BOXES = [[0.25, 0.125, 0.5, 0.375], [0.5, 0.5, 1.0, 0.75]]
SCORES = [[0.0, 0.9, 0.0], [0.0, 0.0, 0.7]]
QUICKLY = ("--num_runs=1", "--max_secs=1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a detector and a grey picture of 200 by 100."""
    (tmp_path / "model.tflite").write_bytes(detector(BOXES, SCORES))
    Image.new("RGB", (200, 100), (128, 128, 128)).save(tmp_path / "picture.png")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*flags: str) -> int:
    return cli.main(["run", "model.tflite", "--image=picture.png", *QUICKLY, *flags])


def test_objects_are_printed_drawn_and_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--labels=labels.txt", "--output=drawn.png", "--json=found.json") == 0
    captured = capsys.readouterr()
    text = captured.out
    assert "output: drawn.png\n" in captured.err
    assert "object    score    left    top   right   bottom" in text
    assert "cat      0.9000    25.0   25.0    75.0     50.0" in text
    assert "dog      0.7000   100.0   50.0   150.0    100.0" in text
    drawn = np.asarray(Image.open(folder / "drawn.png"))
    assert drawn.shape == (100, 200, 3)
    assert (drawn[30:48, 25:27] == colour(0)).all(axis=2).any()
    found = json.loads((folder / "found.json").read_text())
    assert found["task"]["name"] == "detect"
    assert found["task"]["fit"] == "stretch"
    assert [each["name"] for each in found["found"]["objects"]] == ["cat", "dog"]
    assert found["latency"]["delegate"]["runs"] == 1
    assert not [each.name for each in folder.iterdir() if "part" in each.name]


def test_a_turned_photograph_is_drawn_upright(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    Image.new("RGB", (200, 100), "grey").save("turned.jpg", exif=exif)
    argv = ["run", "model.tflite", "--image=turned.jpg", "--output=drawn.png", *QUICKLY]
    assert cli.main([*argv, "--json=found.json"]) == 0
    assert Image.open("drawn.png").size == (100, 200)
    first = json.loads(Path("found.json").read_text())["found"]["objects"][0]
    assert first["box"] == pytest.approx([12.5, 50, 37.5, 100], abs=1e-3)


@pytest.mark.parametrize("fit", ["crop", "letterbox", "stretch"])
def test_the_light_is_found_through_the_whole_tool(fit: str, folder: Path) -> None:
    (folder / "model.tflite").write_bytes(finder())
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[55:65, 115:125] = 255
    Image.fromarray(pixels).save("picture.png")
    scaling = ("--input_mean=0", "--input_std=255", f"--fit={fit}", "--min_score=0")
    assert run(*scaling, "--output=drawn.png", "--json=found.json") == 0
    found = json.loads(Path("found.json").read_text())
    assert found["task"]["fit"] == fit
    position = found["found"]["figures"][0]["points"][0]
    assert (position["x"], position["y"]) == (pytest.approx(120, abs=26), pytest.approx(60, abs=26))
    region = ("--region=100,40,160,100", f"--fit={fit}")
    assert run(*scaling[:2], *region, "--min_score=0", "--json=found.json") == 0
    position = json.loads(Path("found.json").read_text())["found"]["figures"][0]["points"][0]
    assert (position["x"], position["y"]) == (pytest.approx(120, abs=9), pytest.approx(60, abs=9))


def test_an_unclear_model_is_summarised_or_asked_about(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.tflite").write_bytes(saying({"few": [[0.25, 0.75]]}))
    assert run() == 0
    assert "few      1×2" in capsys.readouterr().out
    assert run("--output=drawn.png") == 2
    error = capsys.readouterr().err
    assert "The outputs of this model, 'few' [1, 2], do not determine a task" in error
    assert "--task=classify (the best classes: 'few' is a vector of 2 numbers)" in error
    assert not Path("drawn.png").exists()
    assert run("--output=drawn.png", "--task=classify", "--labels=labels.txt") == 0
    assert "0.7500       1   dog" in capsys.readouterr().out
    assert Path("drawn.png").exists()


def test_other_possible_tasks_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = np.linspace(8, 60, 63).reshape(1, 63)
    mask = np.full((1, 64, 64, 1), 0.5)
    (folder / "model.tflite").write_bytes(saying({"points": points, "mask": mask}))
    assert run("--output=drawn.png") == 0
    error = capsys.readouterr().err
    assert "task: landmarks, because 'points' has 21 points, as a hand has" in error
    assert "also possible: --task=segment" in error


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--output=drawn.bmp"], 2, "--output=drawn.bmp: a drawing is written as .png, .jpg"),
        (["--output=picture.png"], 2, "--output=picture.png: this is the file of --image"),
        (["--output=nowhere/drawn.png"], 1, "--output=nowhere/drawn.png: the file cannot be"),
        (["--task=paint"], 2, "'paint' is not one of detect, pose, landmarks, segment, image"),
        (["--fit=squeeze"], 2, "'squeeze' is not one of crop, stretch, letterbox"),
        (["--min_score=2"], 2, "'2' is not a number from 0 to 1"),
        (["--region=0,0,900,9"], 2, "--region=0,0,900,9: this is no part of a picture of 200×100"),
        (["--task=segment"], 1, "No output of this model is a map of classes"),
    ],
)
def test_errors_name_the_value(
    flags: list[str], status: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == status
    assert message in " ".join(capsys.readouterr().err.split())
    assert sorted(each.name for each in folder.iterdir()) == [
        "labels.txt",
        "model.tflite",
        "picture.png",
    ]


@pytest.mark.parametrize(
    "flag", ["--output=drawn.png", "--task=detect", "--fit=crop", "--region=0,0,1,1"]
)
def test_without_a_picture_there_is_nothing_to_show(
    flag: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "model.tflite", flag]) == 2
    assert f"{flag}: there is no picture to show. Give --image." in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(folder: Path) -> None:
    """The limit on the size of files stands for a full disk."""
    resource = pytest.importorskip("resource", reason="limits of processes are not on Windows")
    assert resource is not None
    program = (
        "import resource, sys\n"
        "from litegpu.tools.drawing.saving import save_picture\n"
        "from litegpu.errors import FileError\n"
        "from PIL import Image\n"
        "import numpy as np\n"
        "noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3)).astype('uint8')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    save_picture('output', 'drawn.png', Image.fromarray(noise))\n"
        "except FileError as error:\n"
        "    sys.exit(str(error))\n"
    )
    (folder / "drawn.png").write_bytes(b"the last one")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "--output=drawn.png: the file cannot be written: File too large" in done.stderr
    assert (folder / "drawn.png").read_bytes() == b"the last one"
    assert not [each.name for each in folder.iterdir() if "part" in each.name]


# How pixels are scaled


def began(model: bytes, **options: Any) -> tuple[Viewer, Any]:
    target = runtime.interpreter(model)
    viewer = Viewer(model, view_args(**options), None)
    viewer.begin(target, Image.new("RGB", (64, 64), "white"))
    return viewer, target


def white(viewer: Viewer) -> Any:
    return viewer.inputs(Image.new("RGB", (64, 64), "white"))[0][0, 0, 0].tolist()


def test_pixels_are_scaled_as_the_metadata_say() -> None:
    viewer, _ = began(finder())
    assert white(viewer) == [1, 1, 1]
    note = metadata.TensorNotes(mean=(0.0, 55.0, 155.0), std=(255.0, 100.0, 10.0))
    assert viewer._facts is not None
    viewer._facts.__dict__["notes"] = metadata.Metadata((note,), ())
    assert white(viewer) == pytest.approx([1, 2, 10])


def test_flags_come_before_the_metadata() -> None:
    viewer, _ = began(finder(), input_mean=0.0, input_std=51.0)
    note = metadata.TensorNotes(mean=(0.0,), std=(255.0,))
    assert viewer._facts is not None
    viewer._facts.__dict__["notes"] = metadata.Metadata((note,), ())
    assert white(viewer) == pytest.approx([5, 5, 5])


@pytest.mark.parametrize(("scale", "zero"), [(1 / 255, -128), (2 / 255, 0), (1.0, -128)])
def test_pixels_fill_the_range_that_the_model_quantizes_them_to(scale: float, zero: int) -> None:
    writer = ModelWriter()
    picture = writer.input((1, 64, 64, 3))
    quantized = writer.op(
        *("QUANTIZE", [picture], [(1, 64, 64, 3)]),
        dtype="int8",
        quantization=Quantization((scale,), (zero,)),
    )
    writer.output(writer.op("DEQUANTIZE", [quantized], [(1, 64, 64, 3)]))
    viewer, _ = began(writer.build())
    assert white(viewer) == pytest.approx([(127 - zero) * scale] * 3, rel=1e-5)
    black = viewer.inputs(Image.new("RGB", (64, 64)))[0][0, 0, 0].tolist()
    assert black == pytest.approx([(-128 - zero) * scale] * 3, rel=1e-5, abs=1e-6)


def test_unknown_scaling_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hint = "does not say how pixels are scaled"
    run("--output=drawn.png")
    assert hint in capsys.readouterr().err
    run("--output=drawn.png", "--input_mean=0", "--input_std=255")
    assert hint not in capsys.readouterr().err


def test_without_the_schema_only_a_drawing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(content: bytes) -> None:
        raise MissingDependencyError("Reading needs 'flatbuffers'.")

    monkeypatch.setattr("litegpu.tools.viewer.CuttableModel", missing)
    viewer, target = began(finder())
    assert viewer.task is None
    outputs, _ = seen(finder())
    assert viewer.read(outputs) is None
    with pytest.raises(MissingDependencyError, match="flatbuffers"):
        began(finder(), output="drawn.png")
    del target


# Inputs of any size


def of_any_size() -> bytes:
    """Scores of six classes for each second pixel of pictures of any size."""
    return fully_convolutional((1, -1, -1, 3))


def test_an_input_of_any_size_gets_that_of_the_picture(folder: Path) -> None:
    (folder / "model.tflite").write_bytes(of_any_size())
    assert run("--task=segment", "--output=drawn.png", "--json=found.json") == 0
    found = json.loads(Path("found.json").read_text())
    assert found["outputs"][0]["shape"] == [1, 48, 96, 6], "96 by 192 are multiples of 32"
    assert all(each["relative_l2"] < 1e-4 for each in found["agreement"])
    with Image.open("drawn.png") as drawn:
        assert drawn.height == 100


def test_large_pictures_are_shrunk_for_an_input_of_any_size() -> None:
    model = of_any_size()
    target = runtime.interpreter(model)
    viewer = Viewer(model, view_args(task="segment"), None)
    viewer.begin(target, Image.new("RGB", (4000, 1000)))
    assert viewer.inputs(Image.new("RGB", (10, 10)))[0].shape == (1, 256, 1024, 3)


def test_a_model_of_one_size_is_not_run_on_another() -> None:
    target = runtime.interpreter(saying({"scores": [[0.1] * 20]}))
    with pytest.raises(ModelError, match=r"cannot run on inputs of the shapes \[\[2, 3\]\]: "):
        runtime.set_inputs(target, [np.zeros((2, 3), np.float32)])
