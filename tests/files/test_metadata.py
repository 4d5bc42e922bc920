"""The metadata in .tflite files."""

from __future__ import annotations

import pytest

from litegpu.files import metadata
from litegpu.files.metadata import AttachedFile, Calibration, FileKind
from model_metadata import Noted, Written
from real_models import find
from small_models import classifier

LABELS = (
    AttachedFile("scores.txt", FileKind.SCORE_CALIBRATION),
    AttachedFile("labels.txt", FileKind.VALUE_LABELS),
    AttachedFile("namen.txt", FileKind.VALUE_LABELS, "de"),
)
NOTED = Written(
    inputs=[Noted(mean=(127.5, 100.0, 0.0), std=(127.5, 50.0, 1.0))],
    outputs=[
        Noted("location", box_order=(1, 0, 3, 2), in_pixels=True, files=LABELS),
        Noted("score", threshold=0.5, calibration=Calibration(2, 0.25)),
    ],
    custom={"SEGMENTER_METADATA": b"\1\2"},
    files={"labels.txt": "cat\ndog\n"},
)


def test_metadata_are_read() -> None:
    found = metadata.read(NOTED.content())
    assert found.inputs[0].mean == (127.5, 100.0, 0.0)
    assert found.inputs[0].std == (127.5, 50.0, 1.0)
    boxes, scores = found.outputs
    assert (boxes.name, boxes.is_boxes, boxes.in_pixels) == ("location", True, True)
    assert (boxes.box_order, boxes.box_form) == ((1, 0, 3, 2), 1)
    assert boxes.label_files == ("labels.txt", "namen.txt")
    assert (scores.score_threshold, scores.calibration) == (0.5, Calibration(2, 0.25))
    assert (boxes.score_threshold, boxes.calibration, scores.is_boxes) == (None, None, False)
    assert found.custom == {"SEGMENTER_METADATA": b"\1\2"}


def test_files_are_found_by_kind_and_language() -> None:
    boxes = metadata.read(NOTED.content()).outputs[0]
    assert boxes.file(FileKind.VALUE_LABELS) == "labels.txt"
    assert boxes.file(FileKind.VALUE_LABELS, "de") == "namen.txt"
    assert boxes.file(FileKind.VALUE_LABELS, "fr") == ""
    assert boxes.file(FileKind.AXIS_LABELS) == ""


def test_the_metadata_of_a_model_are_found() -> None:
    model = NOTED.on(classifier())
    assert metadata.read_model(model) == metadata.read(NOTED.content())
    assert metadata.read_model(classifier()) == metadata.Metadata()
    assert metadata.attached_file(model, "labels.txt") == b"cat\ndog\n"
    assert metadata.attached_file(model, "namen.txt") is None
    assert metadata.attached_file(classifier(), "labels.txt") is None


def test_attached_files_of_any_size_are_not_unpacked() -> None:
    model = Written(files={"large.txt": "x" * (1 << 21)}).on(classifier())
    assert metadata.attached_file(model, "large.txt") is None


@pytest.mark.real_model
def test_the_metadata_of_a_published_model_are_read() -> None:
    """Its file was written by another program, so its field numbers are those of the format."""
    model = find("mobilenet_v1_0.25_128_quant").read_bytes()
    found = metadata.read_model(model)
    assert (found.inputs[0].mean, found.inputs[0].std) == ((127.5,), (127.5,))
    labels = metadata.attached_file(model, found.outputs[0].file(FileKind.AXIS_LABELS))
    assert labels is not None and labels.splitlines()[1] == b"tench, Tinca tinca"


def test_damaged_metadata_say_nothing_or_less() -> None:
    whole = NOTED.content()
    assert metadata.read(b"") == metadata.Metadata()
    for cut in range(len(whole)):
        metadata.read(whole[:cut])
    for index in range(len(whole)):
        metadata.read(whole[:index] + bytes([whole[index] ^ 0xFF]) + whole[index + 1 :])
    model = NOTED.on(classifier())
    for index in range(0, 2000, 7):
        metadata.read_model(model[:index] + bytes([model[index] ^ 0xFF]) + model[index + 1 :])
    metadata.read_model(b"TFL3")


def test_the_rate_and_channels_of_sound() -> None:
    noted = Written(inputs=[Noted("sound", sound=(16000, 2)), Noted("picture")])
    sound, other = metadata.read(noted.content()).inputs
    assert (sound.sample_rate, sound.channels, sound.is_boxes) == (16000, 2, False)
    assert (other.sample_rate, other.channels) == (0, 0)
