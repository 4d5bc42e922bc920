"""Ground truth in its three formats, and the tools that write it."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from eval_models import picture
from litegpu.errors import FileError
from litegpu.files.wire import fields, message
from litegpu.tools import cli
from litegpu.tools.evaluation.average_precision import Detection
from litegpu.tools.evaluation.ground_truth import TruePicture, as_proto, read_ground_truth

LABELS = ["background", "person", "traffic light"]


def instances() -> dict[str, Any]:
    """Return what COCO's JSON looks like; picture 7 has nothing on it, 3 a box that is too wide."""
    return {
        "info": {},
        "images": [
            {"id": 9, "file_name": "b.jpg", "width": 40, "height": 20},
            {"id": 3, "file_name": "a.jpg", "width": 10, "height": 10},
            {"id": 7, "file_name": "c.jpg", "width": 10, "height": 10},
        ],
        "annotations": [
            {"id": 1, "image_id": 3, "category_id": 2, "bbox": [0, 0, 10, 10], "iscrowd": 1},
            {"id": 2, "image_id": 3, "category_id": 2, "bbox": [5, 0, 5.5, 10], "iscrowd": 0},
            {"id": 3, "image_id": 9, "category_id": 1, "bbox": [10, 5, 20, 10], "iscrowd": 0},
        ],
        "categories": [{"id": 1, "name": "person"}, {"id": 2, "name": "traffic light"}],
    }


A = TruePicture("a.jpg", 3, (Detection(2, (0.0, 0.0, 1.0, 1.0)),))
B = TruePicture("b.jpg", 9, (Detection(1, (0.25, 0.25, 0.75, 0.75)),))
C = TruePicture("c.jpg", 7, ())


def written(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_cocos_json(tmp_path: Path) -> None:
    path = written(tmp_path / "instances.json", json.dumps(instances(), indent=1))
    found = read_ground_truth(path)
    assert found.pictures == {"b.jpg": B, "a.jpg": A, "c.jpg": C}
    assert found.dataset == instances()


def test_the_proto(tmp_path: Path) -> None:
    found = read_ground_truth(written(tmp_path / "truth.pb", as_proto([A, B, C])))
    assert found.pictures == {"a.jpg": A, "b.jpg": B, "c.jpg": C}
    (first, *_), (only, _) = found.dataset["images"], found.dataset["annotations"]
    assert (first["file_name"], first["width"], only["bbox"]) == ("a.jpg", 1, [0, 0, 1, 1])


def test_the_proto_s_numbers() -> None:
    """Against the documented field numbers, byte by byte."""
    box = b"".join(
        struct.pack("<Bf", number << 3 | 5, edge)
        for number, edge in ((1, 0.25), (2, 0.75), (3, 0.25), (4, 0.75))
    )
    each = b"\x08\x01\x12" + bytes([len(box)]) + box
    result = b"\x0a" + bytes([len(each)]) + each + b"\x12\x05b.jpg\x18\x09"
    assert as_proto([B]) == b"\x0a" + bytes([len(result)]) + result


def test_defaults_of_the_proto(tmp_path: Path) -> None:
    bare = message((1, message((2, "x.jpg"), (1, message((1, -1))))))
    found = read_ground_truth(written(tmp_path / "truth.pb", bare))
    assert found.pictures["x.jpg"].objects == (Detection(-1, (0.0, 0.0, 0.0, 0.0), 1.0),)
    assert read_ground_truth(written(tmp_path / "empty.pb", b"")).pictures == {}


def test_lines_of_text(tmp_path: Path) -> None:
    text = (
        "image,class,top,left,bottom,right\n# what was seen\n\n"
        'a.jpg,traffic light,0,0,1,1\r\n"b.jpg", 1, 0.25, 0.25, 0.75, 0.75\na.jpg,1,0,0,.5,.5\n'
    )
    found = read_ground_truth(written(tmp_path / "truth.csv", text), LABELS).pictures
    assert found["a.jpg"].objects == (*A.objects, Detection(1, (0.0, 0.0, 0.5, 0.5)))
    assert found["b.jpg"].objects == B.objects


def test_a_picture_without_pixels(tmp_path: Path) -> None:
    content = instances()
    content["images"][0]["width"] = 0
    path = written(tmp_path / "truth.json", json.dumps(content))
    with pytest.raises(FileError, match="cannot be read: a picture is 0 x 20 pixels large"):
        read_ground_truth(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a.jpg,1,0,0,1", "line 1 has 5 columns"),
        ("a.jpg,lamp,0,0,1,1", "line 1: 'lamp' is neither a number nor one of the labels"),
        ("\t\na.jpg,1,0,x,1,1", "line 2: could not convert string to float: 'x'"),
        ("{", "Expecting property name"),
        ('{"images": []}', "there is no 'annotations'"),
        ('{"images": [1], "annotations": []}', "not subscriptable"),
        (b"\x0a\x05abc", "the data end 2 bytes before the end of field 1"),
        (b"\x0a\x02\x0a\x09", "the data end 9 bytes before the end of field 1"),
        (b"\x0a\x02\x10\x01", "1 in place of a message or a text"),
        (b"\xff\xfe\x00", "invalid start byte"),
        (b"\x0a\x01\x0b", "wire type 3 at byte 0"),
        (b"\x0a\x01\x00", "field number 0 at byte 0"),
        (b"\x0a\xff\xff", "the number at byte 1 does not end"),
    ],
)
def test_what_is_in_none_of_the_forms(content: str | bytes, why: str, tmp_path: Path) -> None:
    path = written(tmp_path / "truth", content)
    with pytest.raises(FileError) as caught:
        read_ground_truth(path, LABELS)
    assert f"The ground truth '{path}' cannot be read: " in str(caught.value)
    assert why in str(caught.value)
    assert "Give a binary ObjectDetectionGroundTruth (litegpu pre" in str(caught.value)


def test_damaged_protos_are_refused_and_nothing_else(tmp_path: Path) -> None:
    dice, whole = random.Random(4), as_proto([A, B, C])
    for _ in range(300):
        content = bytearray(whole[: dice.randrange(1, len(whole))])
        for _ in range(dice.randrange(4)):
            content[dice.randrange(len(content))] = dice.randrange(256)
        path = written(tmp_path / "truth", bytes(content))
        with contextlib.suppress(FileError):
            read_ground_truth(path, LABELS)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(
        FileError, match=r"'no.pb' cannot be read: No such file or directory\. Give"
    ):
        read_ground_truth("no.pb")


# preprocess_coco_minival


@pytest.fixture
def coco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with COCO's files."""
    (tmp_path / "images").mkdir()
    for name in ("a", "b", "c"):
        picture(tmp_path / "images" / f"{name}.jpg", "red")
    written(tmp_path / "instances.json", json.dumps(instances()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = (
    *("preprocess_coco_minival", "--images_folder=images", "--instances_file=instances.json"),
    "--output_folder=out/minival",
)


def test_minival(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(COMMAND) == 0
    out = coco / "out" / "minival"
    assert sorted(each.name for each in (out / "images").iterdir()) == ["a.jpg", "b.jpg"]
    assert read_ground_truth(str(out / "ground_truth.pb")).pictures == {"b.jpg": B, "a.jpg": A}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("flags", "names", "warning"),
    [
        (["--num_images=1"], {"a.jpg"}, ""),  # of the lowest number
        (["--num_images=0"], {"a.jpg", "b.jpg"}, ""),
        (["--num_images=-2"], {"a.jpg", "b.jpg"}, "--num_images is -2, hence outputting all annot"),
        (["--num_images=9"], {"a.jpg", "b.jpg"}, "--num_images (9) is larger than the number of"),
        (["--allowlist_file=some.txt"], {"b.jpg"}, ""),
    ],
)
def test_a_part_of_minival(
    flags: list[str],
    names: set[str],
    warning: str,
    coco: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(coco / "some.txt", "9\n7\n\n1234\n")
    assert cli.main([*COMMAND, *flags]) == 0
    found = read_ground_truth(str(coco / "out" / "minival" / "ground_truth.pb")).pictures
    assert found.keys() == names
    assert warning in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ([*COMMAND[:1], *COMMAND[2:]], 2, "--images_folder is needed: folder with COCO's validat"),
        ([*COMMAND, "--images_folder=out"], 1, "2 of 2 pictures are not in 'out', such as 'b.jpg'"),
        ([*COMMAND, "--instances_file=no.json"], 1, "'no.json' cannot be read: No such file or"),
        ([*COMMAND, "--instances_file=bad.json"], 1, "'bad.json' cannot be read: there is no 'ima"),
        (
            [*COMMAND, "--allowlist_file=no.txt"],
            1,
            "Could not read allowlist file: 'no.txt': No su",
        ),
        (
            [*COMMAND, "--allowlist_file=bad.txt"],
            1,
            "has the line 'x', which is not a picture's num",
        ),
        ([*COMMAND, "--output_folder=bad.txt/x"], 1, "--output_folder=bad.txt"),
    ],
)
def test_what_minival_refuses(
    command: list[str],
    status: int,
    message: str,
    coco: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(coco / "bad.json", "{}")
    written(coco / "bad.txt", "9\nx\n")
    assert cli.main(command) == status
    assert message in capsys.readouterr().err
    assert not (coco / "out").exists()


# generate_validation_labels


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    """A folder like the development kit of ILSVRC 2012, with three synsets."""
    io = pytest.importorskip("scipy.io", reason="scipy is not installed")
    import numpy as np

    names = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children"]
    names += ["wordnet_height", "num_train_images"]
    synsets = np.empty((3, 1), dtype=[(name, object) for name in names])
    for number, words in enumerate(["kit fox, Vulpes macrotis", "English setter", "hen"], 1):
        synsets[number - 1, 0] = (number, f"n{number}", words, "", 0, np.zeros(0), 0, 1300)
    (tmp_path / "data").mkdir()
    io.savemat(tmp_path / "data" / "meta.mat", {"synsets": synsets})
    written(tmp_path / "data" / "ILSVRC2012_validation_ground_truth.txt", "3\n1\n1\n2\n")
    return tmp_path


def generate(devkit: Path, target: Path) -> int:
    flags = [f"--ilsvrc_devkit_dir={devkit}", f"--validation_labels_output={target}"]
    return cli.main(["generate_validation_labels", *flags])


def test_validation_labels(devkit: Path, tmp_path: Path) -> None:
    target = tmp_path / "truth.txt"
    assert generate(devkit, target) == 0
    assert target.read_bytes() == b"hen\nkit fox\nkit fox\nEnglish setter\n"


def test_what_validation_labels_refuse(
    devkit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "truth.txt"
    written(devkit / "data" / "ILSVRC2012_validation_ground_truth.txt", "3\n4\n")
    assert generate(devkit, target) == 1
    assert "has the line '4', which is not a synset of meta.mat" in capsys.readouterr().err
    (devkit / "data" / "ILSVRC2012_validation_ground_truth.txt").unlink()
    assert generate(devkit, target) == 1
    assert "Could not read validation ground truth file: '" in capsys.readouterr().err
    written(devkit / "data" / "meta.mat", "no synsets")
    assert generate(devkit, target) == 1
    assert "meta.mat' cannot be read: " in capsys.readouterr().err
    assert not target.exists()
    assert cli.main(["generate_validation_labels", "--ilsvrc_devkit_dir=."]) == 2
    assert "--validation_labels_output is needed: " in capsys.readouterr().err


def test_without_scipy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.io", None)
    assert generate(tmp_path, tmp_path / "truth.txt") == 1
    assert "pip install 'litegpu[ilsvrc]'" in capsys.readouterr().err


def test_messages_are_read_as_they_were_written() -> None:
    content = message((1, 300), (2, "text"), (3, 1.5), (1, -1))
    assert list(fields(content)) == [(1, 300), (2, b"text"), (3, 1.5), (1, (1 << 64) - 1)]
