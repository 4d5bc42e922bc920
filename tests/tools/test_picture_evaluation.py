"""imagenet_image_classification and coco_object_detection: output, files, figures and errors."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from eval_models import LABELS, colour_classifier, detector, picture
from litegpu.files.wire import fields
from litegpu.tools import (
    cli,
    engines,
)
from litegpu.tools.coco_object_detection import detections
from litegpu.tools.evaluation import pictures as picture_evaluation
from litegpu.tools.evaluation.average_precision import Detection, average_precision
from litegpu.tools.imagenet_image_classification import best_classes, top_accuracies
from litegpu.tools.reports.evaluations import detection_sections
from litegpu.tools.reports.sections import Gallery
from places import SOURCE
from real_models import find
from small_models import chain


def masked(text: str) -> list[str]:
    """Return lines with # for numbers, but those of ranks and thresholds.

    How few pictures overlap is the machine's affair.
    """
    text = text.replace(picture_evaluation.WAITED, "")
    text = re.sub(r"(?<=INFO: GPU delegate: ).*", "DEVICE", text)
    pattern = r"(Top-\d+|AP\d\d|Threshold=[\d.]+)"
    number = r"\d+(?:\.\d+)?(?:e[-+]\d+)?"
    return re.sub(f"{pattern}|{number}", lambda found: found[1] or "#", text).splitlines()


def wanted(*parts: str) -> list[str]:
    return [f"INFO: {part}" for part in parts]


LATENCIES = (
    "Preprocessing latency: avg=#(us), std_dev=#(us)",
    "Inference latency: avg=#(us), std_dev=#(us)",
)
THROUGHPUT = "Throughput: # images/s; each stage alone: decode #, infer # images/s; overlap: #%"


def flags(**values: Any) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def errors(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


# Classification

SEEN = ["red", "green", "blue", "yellow", "white", "black", "red", "blue"]
"""What is on the pictures."""
SAID = ["red", "green", "blue", "yellow", "white", "white", "other 5", "red"]
"""What the ground truth says: the last three are found as the second, the eighth and the third."""


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a classifier, eight pictures, what is on them, and labels."""
    (tmp_path / "images" / "folder").mkdir(parents=True)
    for index, colour in enumerate(SEEN):
        picture(tmp_path / "images" / f"{index}.jpg", colour)
    (tmp_path / "truth.txt").write_text("\n".join(SAID), encoding="utf-8")
    (tmp_path / "labels.txt").write_text("\r\n".join(LABELS) + "\r\n", encoding="utf-8")
    (tmp_path / "model.tflite").write_bytes(colour_classifier())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def classify(*more: str, **changed: Any) -> int:
    files = {
        "model_file": "model.tflite",
        "ground_truth_images_path": "images",
        "ground_truth_labels": "truth.txt",
        "model_output_labels": "labels.txt",
        **changed,
    }
    return cli.main(["imagenet_image_classification", *flags(**files), *more])


def accuracies(capsys: pytest.CaptureFixture[str]) -> list[float]:
    found = re.findall(r"^INFO: Top-\d+ Accuracy: (\S+)$", capsys.readouterr().out, re.MULTILINE)
    return [float(each) for each in found]


def test_lines_of_classification(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify("--delegate=gpu") == 0
    assert masked(capsys.readouterr().out) == wanted(
        "GPU delegate created.",
        "GPU delegate: DEVICE",
        "# operation will run on the GPU, and the remaining # operations will run on the CPU.",
        "Num evaluation runs: #",
        *LATENCIES,
        *(f"Top-{rank} Accuracy: #" for rank in range(1, 11)),
        THROUGHPUT,
    )


def test_accuracies_are_those_of_the_ranks(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert classify() == 0
    found = accuracies(capsys)
    assert found[0] == 5 / 8
    assert found == sorted(found) and len(found) == 10
    assert found[-1] == 7 / 8  # "other 5" is the last of twelve


def test_top_accuracies_by_hand() -> None:
    assert top_accuracies([0, 2, None, 9]) == [0.25, 0.25, *[0.5] * 7, 0.75]
    assert top_accuracies([]) == [0.0] * 10


@pytest.mark.parametrize("kind", ["float32", "uint8", "int8"])
def test_of_equal_scores_the_first_class_comes_first(kind: str) -> None:
    scores = np.array([3, 7, 7, -1 if kind == "int8" else 0, 7, 5], kind)
    found = best_classes("", [scores])
    assert found.classes == (1, 2, 4, 5, 0, 3)
    assert found.scores[:2] == (7, 7)


def test_scores_that_are_no_numbers_come_last() -> None:
    assert best_classes("", [np.array([np.nan, 1, 2], np.float32)]).classes == (2, 1, 0)


def message(content: Any) -> dict[int, Any]:
    return dict(fields(content))


def check_latency(content: Any, json_form: dict[str, Any]) -> None:
    assert list(message(content).values()) == list(json_form.values())


def test_files_of_classification(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify("--output_file_path=metrics.pb", "--json=found.json") == 0
    found = json.loads((images / "found.json").read_text(encoding="utf-8"))
    stage = message((images / "metrics.pb").read_bytes())
    metrics = message(message(stage[2])[4])
    assert (stage[1], message(metrics[3])) == (8, {1: 8})
    check_latency(metrics[1], found["preprocessing_latency"])
    check_latency(metrics[2], found["inference_latency"])
    topk = [value for _, value in fields(metrics[4])]
    assert topk == [pytest.approx(each) for each in found["top_k_accuracies"]]
    assert (found["num_runs"], found["left_out"]) == (8, [])
    assert found["stages"]["samples"] == 8 and 0 <= found["stages"]["overlap"] <= 1
    assert accuracies(capsys) == found["top_k_accuracies"]


def test_json_is_alone_on_stdout(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify("--json", "--delegate=gpu") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["num_runs"] == 8
    assert "INFO: Top-10 Accuracy: 0.875\n" in captured.err


def test_progress_is_told_in_percent(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(250):
        os.link(images / "images" / "0.jpg", images / "images" / f"9{index:03}.jpg")
    (images / "truth.txt").write_text("red\n" * 258, encoding="utf-8")
    assert classify("--batch=16") == 0
    reported = re.findall(r"^INFO: Evaluated: (\d+)%$", capsys.readouterr().out, re.MULTILINE)
    assert reported[:4] == ["0", "0", "1", "2"] and reported[-1] == "99"
    assert len(reported) == 129


def test_a_part_of_the_pictures(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (images / "denied.txt").write_text("1\n\n8\n", encoding="utf-8")
    assert classify("--denylist_file_path=denied.txt", "--num_images=4") == 0
    out = capsys.readouterr().out
    assert "Num evaluation runs: 4\n" in out  # 2 to 5
    assert "Top-1 Accuracy: 1\n" in out
    assert classify("--denylist_file_path=denied.txt", "--num_images=99") == 0
    assert "Num evaluation runs: 6\n" in capsys.readouterr().out


def test_files_that_flags_name_are_no_pictures(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("truth.txt", "labels.txt"):
        (images / name).rename(images / "images" / name)
    moved = {"ground_truth_labels": "images/truth.txt", "model_output_labels": "images/labels.txt"}
    assert classify(**moved) == 0
    assert "Num evaluation runs: 8\n" in capsys.readouterr().out


def test_truth_in_other_words_is_warned_of(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "truth.txt").write_text("red\n" * 7 + "rouge\n", encoding="utf-8")
    assert classify() == 0
    assert (
        "WARN: 1 of 8 ground truth labels are not the model's, such as 'rouge': these pictures "
        "count as wrong.\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--batch=3"], ["--batch=0"], ["--decode_threads=3"]])
def test_neither_batches_nor_threads_change_a_figure(
    more: list[str], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert classify() == 0
    alone = accuracies(capsys)
    assert classify(*more) == 0
    assert accuracies(capsys) == alone


def test_two_workers(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(90):  # more than one chunk
        os.link(images / "images" / "1.jpg", images / "images" / f"9{index:03}.jpg")
    with (images / "truth.txt").open("a", encoding="utf-8") as file:
        file.write("\n" + "green\n" * 90)
    assert classify("--json=one.json", "--use_gpu=true") == 0
    assert classify("--json=two.json", "--use_gpu=true", "--workers=2") == 0
    one, two = (json.loads((images / name).read_text()) for name in ("one.json", "two.json"))
    assert one["top_k_accuracies"] == two["top_k_accuracies"]
    assert one["top_k_accuracies"][0] == pytest.approx(95 / 98)
    assert [each["workers"] for each in two["stages"]["stages"]][1] == 2
    assert capsys.readouterr().out.count("GPU delegate created.") == 2  # once each


def test_a_ray_cluster(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("ray.data", reason="Ray Data is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(SOURCE), prepend=os.pathsep)
    (images / "images" / "3.jpg").write_bytes(b"")
    assert classify("--json=here.json", "--use_gpu=true") == 0
    assert classify("--json=ray.json", "--use_gpu=true", "--engine=ray") == 0
    here, ray = (json.loads((images / name).read_text()) for name in ("here.json", "ray.json"))
    for same in ("top_k_accuracies", "num_runs"):
        assert here[same] == ray[same]
    assert ray["left_out"] == [str(images / "images" / "3.jpg")]


# Pictures that cannot be read


@pytest.fixture
def spoilt(images: Path) -> Path:
    (images / "images" / "1.jpg").write_bytes(b"hello")
    (images / "images" / "6.jpg").write_bytes((images / "images" / "6.jpg").read_bytes()[:200])
    (images / "images" / "7.jpg").rename(images / "images" / "7.png")
    return images


def test_unreadable_pictures_are_named_counted_and_left_out(
    spoilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert classify("--json=found.json") == 0
    out = capsys.readouterr().out
    reported = [line for line in out.splitlines() if line.startswith("WARN: ")]
    assert [re.search(r"images.(\d\.\w+)' cannot be read: ", line) for line in reported[:3]]
    assert "images/1.jpg' cannot be read: the file is not a JPEG." in reported[0].replace(
        os.sep, "/"
    )
    assert "Extension .png is not supported." in reported[2]
    assert reported[3] == "WARN: 3 of 8 pictures are skipped, and not counted in the results."
    assert "Num evaluation runs: 5\n" in out
    assert "Top-1 Accuracy: 0.8\n" in out  # the sixth, black, is said to be white
    found = json.loads((spoilt / "found.json").read_text(encoding="utf-8"))
    assert [Path(name).name for name in found["left_out"]] == ["1.jpg", "6.jpg", "7.png"]


def test_an_unreadable_picture_is_fatal_when_told_so(
    spoilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert classify("--strict", "--output_file_path=metrics.pb") == 1
    error = errors(capsys)
    assert "ERROR: Could not run the task evaluation!\n" in error
    assert (
        "1.jpg' cannot be read: the file is not a JPEG." in error
        and "--strict=false skips" in error
    )
    assert not (spoilt / "metrics.pb").exists()


def test_no_picture_can_be_read(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (images / "images").glob("*.jpg"):
        path.write_bytes(b"")
    assert classify() == 1
    assert "None of the 8 files in 'images' could be evaluated; the warnings say" in errors(capsys)


# What classification refuses


def test_flags_that_nobody_knows(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify("--num_images=2", colour="red") == 2
    assert "error: unknown flag '--colour'." in errors(capsys)


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"model_file": "none"}, 1, "No model 'none'"),
        ({"model_file": "images"}, 1, "No model 'images'"),
        ({"model_file": "truth.txt"}, 1, "The runtime rejects this model: "),
        ({"ground_truth_images_path": "none"}, 1, "folder of pictures 'none' cannot be read: No "),
        ({"ground_truth_images_path": "truth.txt"}, 1, "'truth.txt' cannot be read: Not a direct"),
        ({"ground_truth_images_path": None}, 2, "--ground_truth_images_path is needed: folder of"),
        ({"ground_truth_labels": "none"}, 1, "Could not read ground truth labels file: 'none': N"),
        ({"ground_truth_labels": None}, 2, "--ground_truth_labels is needed: text file with"),
        ({"model_output_labels": "no"}, 1, "Could not read model output labels file: 'no': No su"),
        ({"model_output_labels": "model.tflite"}, 1, "Could not read model output labels file: "),
        ({"model_output_labels": "truth.txt"}, 1, "k is too large: there are 10 ranks, and 'trut"),
        ({"model_output_labels": "more.txt"}, 1, "Invalid model_output_shape_: 'scores0' is [1, "),
        ({"denylist_file_path": "none"}, 1, "Could not read denylist file: 'none': No such file"),
        ({"denylist_file_path": "zero.txt"}, 1, "has the line '0', which is not a picture's num"),
        ({"denylist_file_path": "nine.txt"}, 1, "Give numbers from 1 to 8, one a line."),
        ({"denylist_file_path": "all.txt"}, 1, "There are no pictures to evaluate in 'images'."),
        ({"num_images": "-1"}, 2, "'-1' is not a whole number of at least 0"),
        ({"batch": "many"}, 2, "'many' is not a whole number of at least 0"),
        ({"engine": "spark"}, 2, "argument --engine: 'spark' is not one of local, ray"),
        ({"decode_in": "process"}, 2, "is not one of auto, threads, processes. Did you mean"),
        ({"output_file_path": "none/m.pb"}, 1, "--output_file_path=none/m.pb: the file cannot be"),
        ({"model_file": "two.tflite"}, 1, "Model must have 1 input & 1 output, not 1 and 2."),
        ({"model_file": "grey.tflite"}, 1, "Invalid input shape for model: 'input' is [1, 4, 4, "),
    ],
)
def test_what_classification_refuses(
    changed: dict[str, str | None],
    status: int,
    message: str,
    images: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, content in {
        "more.txt": "\n".join([*LABELS, "more"]),
        "zero.txt": "0",
        "nine.txt": "9",
        "all.txt": "\n".join(map(str, range(1, 9))),
    }.items():
        (images / name).write_text(content, encoding="utf-8")
    (images / "two.tflite").write_bytes(colour_classifier(outputs=2))
    (images / "grey.tflite").write_bytes(chain(["ABS"], (1, 4, 4, 1)))
    before = sorted(images.rglob("*"))
    assert classify(**changed) == status
    assert message in errors(capsys)
    assert sorted(images.rglob("*")) == before


def test_another_number_of_labels(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (images / "images" / "notes.txt").write_text("hello", encoding="utf-8")
    assert classify() == 1
    error = errors(capsys)
    assert "ERROR: Could not run the task evaluation!\n" in error
    assert (
        "Number of images and ground truth labels is not same: 'images' has 9 files, of which 1 "
        "are not pictures, such as 'images/notes.txt', and 'truth.txt' 8 lines. Give a folder"
    ) in error.replace(os.sep, "/")
    (images / "images" / "notes.txt").unlink()
    (images / "truth.txt").write_text("red\n" * 7, encoding="utf-8")
    assert classify() == 1
    assert "'images' has 8 files, and 'truth.txt' 7 lines." in errors(capsys)


def test_an_unknown_delegate_is_refused(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify("--delegate=cpu") == 2
    assert "'cpu' is not one of nnapi, gpu, hexagon, xnnpack, coreml" in errors(capsys)


def test_a_model_that_the_gpu_leaves_to_the_cpu(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert classify("--use_gpu=true", "--first_delegate_node_index=100") == 0
    out = capsys.readouterr().out
    assert "WARN: Though GPU delegate is explicitly applied, the model graph will not be" in out
    assert "Top-1 Accuracy: 0.625\n" in out


def test_without_a_decoder(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert classify() == 1
    assert "pip install 'litegpu[tools]'" in errors(capsys)


def test_ctrl_c_leaves_no_file(images: Path) -> None:
    """In a process of its own: interrupted while it evaluates, it ends at once."""
    program = (
        "import signal, sys\n"
        "from litegpu.tools import cli, imagenet_image_classification as tool\n"
        "tool.Classification.take = lambda *_: signal.raise_signal(signal.SIGINT)\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    files = flags(
        ground_truth_images_path="images",
        ground_truth_labels="truth.txt",
        model_output_labels="labels.txt",
        output_file_path="metrics.pb",
        json="found.json",
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "imagenet", "model.tflite", *files],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("litegpu: interrupted\n")
    assert not (images / "metrics.pb").exists() and not (images / "found.json").exists()


# Detection

BOXES = [[0.1, 0.2, 0.5, 0.6], [0.0, 0.0, 0.25, 1.0], [0.5, 0.5, 1.0, 1.0]]
"""Top, left, bottom and right of what the detector finds."""
OBJECT_LABELS = ["???", "person", "bicycle", "car"]


@pytest.fixture
def coco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a detector, two pictures, and labels."""
    (tmp_path / "images").mkdir()
    picture(tmp_path / "images" / "a.jpg", "red")
    picture(tmp_path / "images" / "b.jpg", "blue")
    (tmp_path / "labels.txt").write_text("\n".join(OBJECT_LABELS), encoding="utf-8")
    (tmp_path / "truth.csv").write_text(
        # person: 1 of 2 found, at an overlap of 1; car: the only one found, at 0.8; b has none
        "a.jpg,person,0.1,0.2,0.5,0.6\na.jpg,1,0.8,0.8,0.9,0.9\na.jpg,3,0.5,0.5,1,0.9\n",
        encoding="utf-8",
    )
    model = detector(BOXES, [0, 1, 2], [0.9, 0.8, 0.7], count=3)
    (tmp_path / "model.tflite").write_bytes(model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def detect(*more: str, **changed: Any) -> int:
    files = {
        "model_file": "model.tflite",
        "ground_truth_images_path": "images",
        "ground_truth_proto": "truth.csv",
        "model_output_labels": "labels.txt",
        **changed,
    }
    return cli.main(["coco_object_detection", *flags(**files), *more])


AT = [f"Average Precision [IOU Threshold={value:g}]: #" for value in np.arange(0.5, 1, 0.05)]


def test_lines_of_detection(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    assert detect("--delegate=gpu") == 0
    assert masked(capsys.readouterr().out) == wanted(
        "GPU delegate created.",
        "GPU delegate: DEVICE",
        "# operations will run on the GPU, and the remaining # operations will run on the CPU.",
        "Num evaluation runs: #",
        *LATENCIES,
        *AT,
        "Overall mAP: #",
        "pycocotools: AP=#, AP50=#, AP75=#",
        THROUGHPUT,
    )


@pytest.mark.parametrize(("wall_s", "rest"), [(1.5, ""), (4.0, picture_evaluation.WAITED)])
def test_the_overlap_of_a_short_run(
    wall_s: float, rest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = engines.Meter(1, 1, 1.0, 1.0, 0.0, 0.0, 10, 10, 0, 10, wall_s=wall_s)
    picture_evaluation.print_stages(meter)
    assert capsys.readouterr().out.endswith(f"overlap: {50 if not rest else 0}%{rest}\n")


def test_figures_of_detection_by_hand(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every picture gets the same three objects, so that of each class one detection is too many.

    person, both at 0.9: the first one hits, 1 of 2: recalls 0 to 0.5 (51 of 101) have 1. bicycle is
    not there: 0. car hits at overlaps up to 0.8, and then its precision is 1 at all recalls.
    """
    assert detect("--output_file_path=metrics.pb", "--json=found.json") == 0
    person = 51 / 101
    expected = [(person + (number < 7)) / 3 for number in range(10)]
    out = capsys.readouterr().out
    found = [float(each) for each in re.findall(r"Threshold=\S+\]: (\S+)", out)]
    assert found[:6] + found[7:] == pytest.approx(expected[:6] + expected[7:], abs=1e-6)
    content = json.loads((coco / "found.json").read_text(encoding="utf-8"))
    assert content["overall_map"] == pytest.approx(np.mean(found), abs=1e-6)
    assert content["class_map"]["1"] == pytest.approx(person, abs=1e-12)
    assert content["class_map"]["2"] == 0

    stage = message((coco / "metrics.pb").read_bytes())
    metrics = message(message(stage[2])[7])
    assert (stage[1], message(metrics[3])) == (2, {1: 2})
    check_latency(metrics[1], content["preprocessing_latency"])
    check_latency(metrics[2], content["inference_latency"])
    precisions = [message(value) for number, value in fields(metrics[4]) if number == 1]
    assert [each[1] for each in precisions] == pytest.approx(np.arange(0.5, 1, 0.05))
    assert [each[2] for each in precisions] == pytest.approx(found, abs=1e-5)
    assert message(metrics[4])[2] == pytest.approx(content["overall_map"], abs=1e-6)


def test_what_is_found_on_each_picture(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert detect("--debug_mode=true", "--num_images=1") == 0
    lines = capsys.readouterr().out.split("INFO: Num evaluation runs")[0].splitlines()
    objects = [
        line
        for index, (box, score) in enumerate(zip(BOXES, [0.9, 0.8, 0.7], strict=True))
        for line in wanted(
            f"Object [{index}]",
            f"  Score: {score}",
            f"  Class-ID: {index + 1}",
            "  Bounding Box:",
            f"    Normalized Top: {box[0]:g}",
            f"    Normalized Bottom: {box[2]:g}",
            f"    Normalized Left: {box[1]:g}",
            f"    Normalized Right: {box[3]:g}",
        )
    ]
    assert lines == [
        *wanted("Image: a.jpg"),
        "",
        *objects,
        *wanted("=" * 54),
        "",
    ]


def test_without_ground_truth(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert detect("--output_file_path=metrics.pb", ground_truth_proto=None) == 0
    assert masked(capsys.readouterr().out) == [
        "WARN: mAP metrics are meaningless w/o ground truth.",
        *wanted("Num evaluation runs: #", *LATENCIES, "Overall mAP: #", THROUGHPUT),
    ]
    metrics = message(message(message((coco / "metrics.pb").read_bytes())[2])[7])
    assert sorted(metrics) == [1, 2, 3]


def test_ground_truth_of_other_pictures(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (coco / "truth.csv").write_text("c.jpg,1,0,0,1,1\n", encoding="utf-8")
    assert detect() == 0
    out = capsys.readouterr().out
    assert "WARN: The ground truth contains no picture with one of these file names." in out
    assert "Overall mAP: 0\n" in out


def test_without_pycocotools(
    coco: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    assert detect() == 0
    out = capsys.readouterr().out
    assert "WARN: COCO's own mean average precision needs the Python package 'pycocotools'" in out
    assert "pip install 'litegpu[coco]'" in out and "Overall mAP: 0." in out


@pytest.mark.parametrize(
    ("classes", "truth", "number"),
    [([0, 1, 3], None, "4"), ([0, -2, 1], None, "-1"), ([0, 1, 2], "a.jpg,4,0,0,1,1", "4")],
)
def test_classes_beyond_the_labels(
    classes: list[float],
    truth: str | None,
    number: str,
    coco: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (coco / "model.tflite").write_bytes(detector(BOXES, classes, [0.9, 0.8, 0.7]))
    if truth:
        (coco / "truth.csv").write_text(truth, encoding="utf-8")
    assert detect("--output_file_path=metrics.pb") == 1
    error = errors(capsys)
    assert "ERROR: Could not run the task evaluation!\n" in error
    assert f"Encountered invalid class ID: {number}. --model_output_labels has 4 lines" in error
    assert not (coco / "metrics.pb").exists()


@pytest.mark.parametrize(
    ("count", "found"), [(2.0, 2), (0.0, 0), (-3.0, 0), (99.0, 3), (np.nan, 0), (1.9, 1)]
)
def test_the_count_says_how_many_there_are(count: float, found: int) -> None:
    arrays = (BOXES, [0.0, 1.0, 2.0], [0.9, 0.8, 0.7], [count])
    assert len(detections("", [np.array(each, np.float32) for each in arrays])) == found


def test_a_class_that_is_no_number_is_none() -> None:
    arrays = (BOXES, [np.nan, np.inf, 2.9], [0.9, 0.8, 0.7], [3.0])
    objects = detections("", [np.array(each, np.float32) for each in arrays])
    assert [each.class_id for each in objects] == [-1, -1, 3]
    assert objects[0].box == tuple(struct.unpack("4f", struct.pack("4f", *BOXES[0])))


def test_what_detection_refuses(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (coco / "model.tflite").write_bytes(colour_classifier())
    assert detect() == 1
    error = errors(capsys)
    assert "Object detection model must have 1 input & 4 outputs: float32 boxes [1, N, 4]," in error
    assert "This one has 1 and 1: float32[1, 12]. Use a model that ends in TFLite" in error
    assert detect(ground_truth_proto="none.pb") == 1
    assert "The ground truth 'none.pb' cannot be read: No such file" in errors(capsys)
    assert detect(ground_truth_proto="model.tflite") == 1
    assert "The ground truth 'model.tflite' cannot be read: " in errors(capsys)
    assert detect(model_output_labels=None) == 2
    assert "--model_output_labels is needed: " in errors(capsys)


# Reports


def test_the_page_of_a_classification(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "</script><script>alert(1)</script>"
    (images / "truth.txt").write_text("\n".join([*SAID[:7], hostile]), encoding="utf-8")
    (images / "images" / "5.jpg").write_bytes(b"")
    assert classify("--report=page.html", "--use_gpu=true") == 0
    page = (images / "page.html").read_text(encoding="utf-8")
    assert "top-1 accuracy 0.714286, top-5 accuracy 0.714286, on 7 pictures. 1 could not" in page
    assert page.count("data:image/jpeg;base64,") == 2  # what was taken for something else
    assert "says: blue (" in page and "is: &lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert hostile not in page
    for heading in ("Accuracy", "Confusions", "Worst examples", "Stages", "Latency", "Graph"):
        assert f">{heading}</h2>" in page


def test_the_page_of_a_detection(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert detect("--report=page.html") == 0
    page = (coco / "page.html").read_text(encoding="utf-8")
    assert "overall mAP 0.368317" in page and "the CPU alone" in page
    assert page.count("data:image/jpeg;base64,") == 1  # the one with something on it
    for heading in ("Average precision", "Precision and recall", "Average precision by class"):
        assert f">{heading}</h2>" in page
    assert "bicycle" in page
    assert detect("--report=page.html", ground_truth_proto=None) == 0
    assert "Evaluated, on 2 pictures." in (coco / "page.html").read_text(encoding="utf-8")


def test_examples_show_what_is_there_and_what_was_found(coco: Path) -> None:
    there, found = Detection(1, (0.1, 0.1, 0.6, 0.6)), Detection(1, (0.5, 0.5, 2.0, 0.9), 0.9)
    backwards = Detection(1, (0.5, 0.5, 0.2, 0.2), 0.9)
    path = str(picture(coco / "images" / "large.jpg", "white", (800, 400)))
    precision = average_precision([([there], [found])])
    pictures = [(path, [there], [found, backwards, Detection(1, there.box, 0.4)])]
    *_, gallery = detection_sections(precision, OBJECT_LABELS, pictures)
    assert isinstance(gallery, Gallery)
    with Image.open(io.BytesIO(gallery.pictures[0].content)) as shown:
        assert shown.size == (320, 160)
        pixels = np.asarray(shown.convert("RGB"), np.int64)
    green, orange = pixels[60, 32], pixels[120, 160]
    assert green[1] > green[0] + 50 and orange[0] > orange[2] + 50


def test_a_page_that_cannot_be_written(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify("--report=none/page.html") == 1
    captured = capsys.readouterr()
    assert "--report=none/page.html: the file cannot be written" in captured.err
    assert captured.out == ""


# Trained models


def trained(name: str) -> Path:
    """Return a trained model with pictures beside its folder."""
    model = find(name).resolve()
    if not (model.parent.parent / "images").is_dir():
        pytest.skip(f"there is no folder of pictures beside that of {model}")
    return model


def figures(
    tool: str, model: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> dict[str, Any]:
    folder = model.parent.parent / "images" / ("coco" if tool == "coco" else "imagenet")
    truth = {
        "coco": ("ground_truth_proto", "instances_val2017.json"),
        "imagenet": ("ground_truth_labels", "ground_truth_labels.txt"),
    }[tool]
    names = flags(
        ground_truth_images_path=folder,
        model_output_labels=folder / "labels.txt",
        **{truth[0]: folder / truth[1]},
    )
    assert cli.main([tool, str(model), *names, "--json", *more]) == 0
    printed = capsys.readouterr()
    found: dict[str, Any] = json.loads(printed.out)
    assert not found["left_out"], printed.err  # which says why
    return found


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("kind", "cpu_flags", "first", "fifth", "apart"),
    [
        ("float32", ("--batch=8",), 0.52, 0.765, 1),
        # XNNPACK's integers are not those of the built-in kernels, to which the GPU is exact.
        ("quant", ("--batch=8", "--use_xnnpack=false"), 0.525, 0.77, 0),
    ],
)
def test_accuracy_of_a_trained_model(
    kind: str,
    cpu_flags: tuple[str, ...],
    first: float,
    fifth: float,
    apart: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The CPU and the GPU find the classes of as many of 200 pictures, but for some `apart`."""
    model = trained(f"mobilenet_v1_0.25_128_{kind}")
    cpu = figures("imagenet", model, capsys, *cpu_flags)
    gpu = figures("imagenet", model, capsys, "--delegate=gpu")
    assert cpu["num_runs"] == gpu["num_runs"] == 200
    cpu_rates, gpu_rates = cpu["top_k_accuracies"], gpu["top_k_accuracies"]
    assert cpu_rates[0] == pytest.approx(first, abs=0.011)
    assert cpu_rates[4] == pytest.approx(fifth, abs=0.011)
    assert np.rint(200 * np.abs(np.subtract(cpu_rates, gpu_rates))).max() <= apart


@pytest.mark.real_model
def test_precision_of_a_trained_detector(capsys: pytest.CaptureFixture[str]) -> None:
    model = trained("ssd_mobilenet_v1_coco_float32")
    cpu = figures("coco", model, capsys, "--num_images=16")
    gpu = figures("coco", model, capsys, "--num_images=16", "--delegate=gpu")
    assert cpu["overall_map"] > 0.1
    assert gpu["overall_map"] == pytest.approx(cpu["overall_map"], abs=0.003)
    if cpu["pycocotools"]:  # which passes over classes that are only found
        assert cpu["overall_map"] < cpu["pycocotools"]["mean"] < cpu["overall_map"] + 0.06
