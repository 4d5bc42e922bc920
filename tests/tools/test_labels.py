"""Class names from a file, from the model's own metadata, and of ImageNet."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from litegpu.errors import FileError
from litegpu.tools import downloads, labels
from litegpu.tools.labels import (
    IMAGENET_CLASSES,
    attached_labels,
    find_labels,
    imagenet_labels,
    read_labels,
)


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
    with pytest.raises(FileError, match=r"has 1 lines but the model tells 2 classes apart"):
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


def test_imagenet_names_lie_beside_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"class {number}" for number in range(IMAGENET_CLASSES)]
    (tmp_path / "models").mkdir()
    (tmp_path / "images" / "imagenet").mkdir(parents=True)
    (tmp_path / "images" / "imagenet" / "labels.txt").write_text("\n".join(names))
    monkeypatch.setenv("LITEGPU_MODELS", str(tmp_path / "models"))
    assert find_labels(None, b"", IMAGENET_CLASSES) == names


def test_imagenet_names_are_fetched_else_numbers_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "place.txt"
    digest = hashlib.sha256(b"cat\ndog").hexdigest()
    asset = downloads.Asset("names.txt", path.as_uri(), digest)
    monkeypatch.setattr(labels, "IMAGENET", asset)
    monkeypatch.setattr(labels, "model_folders", list)
    monkeypatch.setattr(downloads, "cache_folder", lambda: tmp_path / "cache")
    assert imagenet_labels() == []
    assert "are not here; showing class numbers. names.txt could not" in capsys.readouterr().err
    path.write_bytes(b"cat\ndog")
    assert imagenet_labels() == ["cat", "dog"]
