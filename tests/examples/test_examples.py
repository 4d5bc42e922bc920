"""The examples, each in a separate process, on real models."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import forked
from face_models import face_file
from hand_models import gesture_file
from litegpu import zoo
from litegpu.tools.picture_flag import (
    default_picture,
)
from places import ROOT, python_path
from real_models import find
from seeing_models import clip
from served import serving
from sound_models import hearing

EXAMPLES = ROOT / "examples"
SMALL = "zoo:mobilenet_v1_0.25_128"


def run(name: str, *arguments: object, folder: Path) -> str:
    """Run an example in a folder; return what it prints."""
    command = [str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = forked.run(command, folder, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def differs(path: Path, original: Path) -> float:
    """Return the share of pixels that were drawn on."""
    drawn, before = (np.asarray(Image.open(each).convert("RGB"), int) for each in (path, original))
    return float((np.abs(drawn - before).max(-1) > 60).mean())


def portrait(folder: Path) -> Path:
    """Return the portrait as a file without the losses of JPEG."""
    path = folder / "portrait.png"
    Image.open(default_picture()).convert("RGB").save(path)
    return path


def test_every_example_is_run_and_shown() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.*"):
        assert f'"{path.stem}"' in tested, path
        assert f"examples/{path.name}" in page, path
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 100 or path.suffix == ".ipynb", path


@pytest.mark.real_model
def test_classify(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"name {number}" for number in range(1001)), encoding="utf-8")
    model = find("mobilenet_v2_1.0_224_float32")
    printed = run("classify", model, portrait(tmp_path), f"--labels={labels}", folder=tmp_path)
    assert re.match(r" *0\.\d+ +653 +name 653\n", printed), printed


@pytest.mark.real_model
def test_detect(tmp_path: Path) -> None:
    model, picture = find("ssd_mobilenet_v1_coco_float32"), portrait(tmp_path)
    labels = tmp_path / "labels.txt"
    labels.write_text("background\nperson\n", encoding="utf-8")
    printed = run("detect", model, picture, f"--labels={labels}", folder=tmp_path)
    assert "the remaining 0 operations will run on the CPU" in printed
    assert re.search(r"^person +[5-9]\d\.\d%", printed, re.MULTILINE), printed
    assert 0.001 < differs(tmp_path / "detected.png", picture) < 0.1


@pytest.mark.real_model
def test_object_detector(tmp_path: Path) -> None:
    model, picture = find("ssd_mobilenet_v1_coco_float32"), portrait(tmp_path)
    printed = run("object_detector", model, picture, folder=tmp_path)
    assert re.match(r"class 0 +7\d\.\d%  x \d+\.\.50\d", printed), printed
    assert 0.001 < differs(tmp_path / "objects.png", picture) < 0.1


@pytest.mark.real_model
def test_pycoral_detect(tmp_path: Path) -> None:
    labels, picture = tmp_path / "labels.txt", portrait(tmp_path)
    labels.write_text("0 person\n31 tie\n", encoding="utf-8")
    model = find("ssd_mobilenet_v1_coco_quant")
    printed = run("pycoral_detect", model, picture, f"--labels={labels}", folder=tmp_path)
    assert re.match(r"person +7\d\.\d%  \(-?\d+, \d+, 5\d\d, [56]\d\d\)\ntie ", printed), printed
    assert 0.001 < differs(tmp_path / "pycoral.png", picture) < 0.1


@pytest.mark.real_model
def test_face_detector(tmp_path: Path) -> None:
    model, picture = find("face_detection_short_range_float16"), portrait(tmp_path)
    printed = run("face_detector", model, picture, folder=tmp_path)
    assert re.match(r"face +9\d\.\d%  x 17\d\.\.36\d  y 14\d\.\.34\d", printed), printed
    assert 0.001 < differs(tmp_path / "faces.png", picture) < 0.1


def test_audio_classifier(tmp_path: Path) -> None:
    model, sound = tmp_path / "sound.tflite", tmp_path / "sound.wav"
    model.write_bytes(hearing())
    with wave.open(os.fspath(sound), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.array([0, 16384, 8192], np.int16).tobytes())
    printed = run("audio_classifier", model, sound, "--results=2", folder=tmp_path)
    assert printed == "  0.00 s  class 1 50.0%, class 2 25.0%\n"


def test_face_landmarker(tmp_path: Path) -> None:
    model, picture = tmp_path / "face.task", portrait(tmp_path)
    model.write_bytes(face_file())
    printed = run("face_landmarker", model, picture, folder=tmp_path)
    assert re.match(r"face  \w+ [\d.]+, \w+ [\d.]+, \w+ [\d.]+\n\d+ cm before", printed), printed
    assert 0 < differs(tmp_path / "landmarks.png", picture) < 0.1


def test_gesture_recognizer(tmp_path: Path) -> None:
    model, picture = tmp_path / "gestures.task", portrait(tmp_path)
    model.write_bytes(gesture_file())
    printed = run("gesture_recognizer", model, picture, folder=tmp_path)
    assert re.match(r"Right hand  Victory +50\.0%", printed), printed
    assert 0 < differs(tmp_path / "gestures.png", picture) < 0.1


@pytest.mark.real_model
def test_segment(tmp_path: Path) -> None:
    picture = portrait(tmp_path)
    printed = run("segment", find("deeplabv3_257_mv_gpu"), picture, folder=tmp_path)
    assert re.search(r"^class +15 +6\d\.\d%", printed, re.MULTILINE), printed
    assert 0.3 < differs(tmp_path / "segmented.png", picture) < 0.9


@pytest.mark.real_model
def test_pose(tmp_path: Path) -> None:
    model, picture = find("posenet_mobilenet_v1_100_257x257_integer_quant"), portrait(tmp_path)
    printed = run("pose", model, picture, "--threshold=0.01", folder=tmp_path)
    nose = re.match(r"nose +\d+\.\d% +x +([\d.]+) +y +([\d.]+)", printed)
    width, height = Image.open(picture).size
    assert nose is not None, printed
    assert abs(float(nose[1]) / width - 0.49) < 0.1  # where the face is, and above the middle
    assert abs(float(nose[2]) / height - 0.4) < 0.1
    assert len(printed.splitlines()) == 17
    assert 0.001 < differs(tmp_path / "pose.png", picture) < 0.2


@pytest.mark.real_model
def test_face_landmarks(tmp_path: Path) -> None:
    models = (find("face_detection_front"), find("face_landmark"))
    printed = run("face_landmarks", *models, portrait(tmp_path), folder=tmp_path)
    found = re.match(r"face at \[(\d+)\. (\d+)\.\] with 9\d\.\d%\n468 points\n", printed)
    assert found is not None, printed
    face = np.asarray(Image.open(tmp_path / "face.png"), int)
    yellow = (face == (255, 255, 0)).all(-1)
    assert yellow.sum() > 1000
    rows, columns = np.nonzero(yellow)
    assert abs(columns.mean() - int(found[1])) < 30
    assert abs(rows.mean() - int(found[2])) < 60


@pytest.mark.real_model
def test_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'litegpu[video]'")
    clip(str(tmp_path / "clip.mp4"), frames=5)
    printed = run("video", find("ssd_mobilenet_v1_coco_float32"), "clip.mp4", folder=tmp_path)
    assert printed.startswith("5 frames, ")
    with av.open(str(tmp_path / "detected.mp4")) as film:
        assert [(frame.width, frame.height) for frame in film.decode(video=0)] == [(160, 100)] * 5


def test_same_model(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(zoo.load(SMALL))
    first, second = run("same_model", path, folder=tmp_path).splitlines()
    assert re.fullmatch(r"CompiledModel: [\d.e-]+ from the interpreter", first)
    assert float(first.split()[1]) < 1e-6
    torch = r"PyTorch: [\d.e-]+ from the interpreter|PyTorch is not installed: pip install torch"
    assert re.fullmatch(torch, second)


def test_custom_op(tmp_path: Path) -> None:
    printed = run("custom_op", folder=tmp_path)
    assert "3 operations will run on the GPU" in printed
    assert printed.endswith("largest difference from NumPy: 0.0\n")


def test_ray_batch(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'litegpu[ray]'")
    path = tmp_path / "model.tflite"
    path.write_bytes(zoo.load(SMALL))
    assert run("ray_batch", path, "--rows=20", folder=tmp_path).startswith("20 rows, classes [")


def test_serve(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="pip install 'litegpu[examples]'")
    pytest.importorskip("uvicorn", reason="pip install 'litegpu[examples]'")
    path = tmp_path / "model.tflite"
    path.write_bytes(zoo.load(SMALL))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        str((EXAMPLES / "serve").with_suffix(".py")),
        str(path),
        f"--port={port}",
    ]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = f"http://127.0.0.1:{port}/classify"
            picture = Path(default_picture()).read_bytes()
            answers = _answers(server, address, picture)
            assert [len(each) for each in answers] == [5] * 8
            assert all(each == answers[0] for each in answers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address, b"no picture", timeout=20)
            assert refused.value.code == 415
            assert "no picture that Pillow reads" in refused.value.read().decode()
        finally:
            server.send_signal(signal.SIGTERM)
            errors = server.communicate(timeout=30)[1]
    assert "Application shutdown complete." in errors


def _answers(server: subprocess.Popen[str], address: str, picture: bytes) -> list[list[object]]:
    """Return the answers to eight requests at once, once the service answers at all."""

    def ask(_: int = 0) -> list[object]:
        with urllib.request.urlopen(address, picture, timeout=60) as answer:
            return list(json.loads(answer.read()))

    until = time.monotonic() + 60
    while True:
        assert server.poll() is None
        try:
            ask()
            break
        except urllib.error.URLError:
            assert time.monotonic() < until
            time.sleep(0.2)
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(ask, range(8)))


def test_serve_client(tmp_path: Path) -> None:
    for package in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="needs litegpu[serve]")
    with serving(tmp_path, f"m={SMALL}", "--backend=cpu", "--max_batch=1") as server:
        address = f"--address=http://127.0.0.1:{server.port}"
        printed = run("serve_client", default_picture(), "--model=m", address, folder=tmp_path)
    assert re.fullmatch(r"(0\.\d{3}  \d+\n){5}", printed), printed


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install 'litegpu[examples]'")
    nbclient = pytest.importorskip("nbclient", reason="pip install 'litegpu[examples]'")
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    notebook = nbformat.read((EXAMPLES / "notebook").with_suffix(".ipynb"), as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # they would grow old
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(tmp_path))
    shown = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    pages = [each["data"]["text/html"] for each in shown if "text/html" in each.get("data", {})]
    assert len(pages) == 2, "the report and the profile"
    text = "".join(each.get("text", "") for each in shown)
    assert "OutputDiff[0]: avg_error=" in text, text
    assert "Unconsumed" not in text, text
