"""Every `console` and `python` block of the documents works."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import forked
from c_compiler import compiler
from containers import bundle
from eval_models import detector
from litegpu.tools import cli
from litegpu.tools.picture_flag import (
    default_picture,
)
from litegpu.zoo.containers import Section, litertlm
from places import ROOT, SOURCE
from seeing_models import clip
from small_models import classifier, keywords

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NO_HOME = Path("/proc/home" if sys.platform == "linux" else Path(__file__) / "home")
"""A folder that not even root can create."""
QUICKLY = {
    "run": ("--num_runs=1", "--max_secs=1"),
    "demo": ("--num_runs=1", "--max_secs=1"),
    "profile": ("--repeats=1",),
    "benchmark": ("--num_runs=1", "--min_secs=0", "--warmup_min_secs=0"),
    "benchmark_model": ("--num_runs=1", "--min_secs=0", "--warmup_min_secs=0"),
    "inference_diff": ("--num_runs=1",),
}


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (document, text) of each code block in `language`."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [
        (str(path.relative_to(ROOT)), match)
        for path in DOCUMENTS
        for match in pattern.findall(path.read_text(encoding="utf-8"))
    ]


def commands() -> list[tuple[str, str]]:
    """Return (document, command) for each line that starts with a `$` prompt, equal ones once."""
    shown = {
        line[2:]: document
        for document, text in reversed(blocks("console"))
        for line in text.splitlines()
        if line.startswith("$ ")
    }
    return [(document, command) for command, document in reversed(shown.items())]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the files that the documents speak of."""
    shutil.copy(default_picture(), tmp_path / "picture.jpg")
    (tmp_path / "pictures").mkdir(exist_ok=True)
    shutil.copy(default_picture(), tmp_path / "pictures")
    (tmp_path / "model.tflite").write_bytes(classifier())
    (tmp_path / "keywords.tflite").write_bytes(keywords())
    add_containers(tmp_path, (tmp_path / "model.tflite").read_bytes())
    add_evaluation(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_containers(folder: Path, model: bytes) -> None:
    """Add a bundle with a model under two names, and a file of a language model with them."""
    names = ("face_detector.tflite", "face_landmarks_detector.tflite")
    (folder / "face_landmarker.task").write_bytes(bundle(dict.fromkeys(names, model)))
    sections = [Section(model), Section(model, 3, "tf_lite_embedder"), Section(b"", 5, "")]
    (folder / "chat.litertlm").write_bytes(litertlm(sections))


def add_library(text: str) -> None:
    """Add the external delegate to the current folder if a text loads it."""
    if "./liblitegpu.so" in text:
        compiler()
        assert cli.main(["build-delegate", "liblitegpu.so"]) == 0


def add_evaluation(folder: Path) -> None:
    """Add a detector, two pictures, what is on them, and the names of what models tell apart."""
    (folder / "images").mkdir()
    for name in ("a.jpg", "b.jpg"):
        shutil.copy(folder / "picture.jpg", folder / "images" / name)
    names = [f"class {number}" for number in range(1001)]
    (folder / "labels.txt").write_text("\n".join(names), encoding="utf-8")
    (folder / "truth.txt").write_text("class 1\nclass 2\n", encoding="utf-8")
    (folder / "objects.txt").write_text("background\nperson\n", encoding="utf-8")
    (folder / "detector.tflite").write_bytes(detector([[0, 0, 1, 1]], [0], [0.9]))
    instances = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 9, "height": 9}],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 1,
                "bbox": [0, 0, 9, 9],
                "area": 81,
                "iscrowd": 0,
            }
        ],
        "categories": [{"id": 1, "name": "person"}],
    }
    (folder / "instances.json").write_text(json.dumps(instances), encoding="utf-8")


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python as in a read-only container: the home folder cannot be created.

    PoCL, which needs a cache folder, has another one.
    """
    environment = {k: text for k, text in os.environ.items() if not k.startswith("XDG_")}
    environment |= {"PYTHONPATH": str(SOURCE), "HOME": str(NO_HOME)}
    environment.setdefault("POCL_CACHE_DIR", tempfile.gettempdir())
    return forked.run(arguments, Path.cwd(), environment)


def test_the_documents_show_commands() -> None:
    assert {document for document, _ in commands()} >= {"README.md"}
    assert blocks("python")


def test_workflows_run_commands_that_are_shown() -> None:
    shown = {command for _, command in commands()}
    found = {run for _, text in blocks("yaml") for run in re.findall("- run: (litegpu .*)", text)}
    assert found and found <= shown


@pytest.mark.parametrize(("document", "command"), commands())
def test_command(document: str, command: str, folder: Path) -> None:
    program, *arguments = shlex.split(command)
    assert program == "litegpu", f"{document}: console blocks hold litegpu commands, not {program}"
    add_library(command)
    if "clip.mp4" in command:
        pytest.importorskip("av", reason="PyAV is not installed: pip install 'litegpu[video]'")
        clip("clip.mp4")
    elif "--image=pictures" not in command:  # many pictures are not timed again and again
        arguments += QUICKLY.get(arguments[0], ())
    result = run(["-m", "litegpu.tools.cli", *arguments])
    assert result.returncode == (1 if "--tolerance=0.00001" in command else 0), result.stderr


def programs() -> list[tuple[str, str]]:
    """Return (document, code) of each block of Python, equal ones, as of translations, once."""
    return [(name, code) for code, name in dict(each[::-1] for each in blocks("python")).items()]


@pytest.mark.parametrize(("document", "code"), programs())
def test_python_block(document: str, code: str, folder: Path) -> None:
    add_library(code)
    result = run(["-c", code])
    assert result.returncode == 0, f"{document}: {result.stderr}"
