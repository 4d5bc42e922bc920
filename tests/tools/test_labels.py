"""Class names from a file, from the model's metadata, and of ImageNet."""

from __future__ import annotations

import io
import urllib.request
import zipfile
from pathlib import Path

import pytest

from litegpu.errors import FileError
from litegpu.tools.labels import attached_labels, find_labels, read_labels


def with_attachment(text: str) -> bytes:
    stream = io.BytesIO()
    stream.write(b"TFL3 the model itself")
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("labels.txt", text)
    return stream.getvalue()


def test_a_labels_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("cat\ndog\n", encoding="utf-8")
    assert find_labels(read_labels(str(file)), b"", 2) == ["cat", "dog"]


def test_a_labels_file_must_fit_the_model(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("cat\n")
    with pytest.raises(FileError, match=r"has 1 lines but the model has 2 classes"):
        find_labels(read_labels(str(file)), b"", 2)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"])
def test_an_unreadable_labels_file_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    if content:
        file.write_bytes(content)
    with pytest.raises(FileError, match=r"The labels file '.*labels\.txt' cannot be read"):
        find_labels(read_labels(str(file)), b"", 2)


def test_labels_attached_to_the_model_are_used_when_they_fit() -> None:
    model = with_attachment("cat\ndog\n")
    assert attached_labels(model) == ["cat", "dog"]
    assert find_labels(None, model, 2) == ["cat", "dog"]
    assert find_labels(None, model, 3) == []


def test_the_metadata_may_name_the_file() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("calibration.txt", "0.5,1.0\n")
        archive.writestr("names.txt", "cat\ndog\n")
    assert attached_labels(stream.getvalue()) == ["0.5,1.0"]
    assert attached_labels(stream.getvalue(), ["absent.txt", "names.txt"]) == ["cat", "dog"]
    assert find_labels(None, stream.getvalue(), 2, ["names.txt"]) == ["cat", "dog"]


def test_a_model_without_attachment_has_no_labels() -> None:
    assert attached_labels(b"TFL3") == []


def test_a_damaged_or_huge_attachment_is_none() -> None:
    model = with_attachment("cat\n" * 1000)
    for index in range(len(model) - 200, len(model)):
        attached_labels(model[:index] + bytes([model[index] ^ 0xFF]) + model[index + 1 :])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.txt", "\n" * (1 << 24))
    assert attached_labels(stream.getvalue()) == []


def test_what_is_no_classifier_needs_no_labels() -> None:
    assert find_labels(None, with_attachment("cat\ndog\n"), 0) == []


@pytest.mark.parametrize(("classes", "number"), [(1001, 653), (1000, 652)])
def test_imagenet_names_come_with_the_package(
    classes: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("a download"))
    names = find_labels(None, b"", classes)
    assert len(names) == classes
    assert names[number] == "military uniform"
    assert find_labels(None, b"", 999) == []
