"""Class names: from a file, from the model file, or from ImageNet."""

from __future__ import annotations

import importlib.resources
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import FileError


@dataclass(frozen=True)
class NamedLabels:
    """The lines of the user's text file."""

    file: str
    lines: list[str]


def read_labels(file: str | None) -> NamedLabels | None:
    """Return the lines of a text file with one class per line; None without a file.

    Raises FileError when the file cannot be read.
    """
    return None if file is None else NamedLabels(file, _read(file))


def find_labels(
    named: NamedLabels | None, model: bytes, classes: int, files: Sequence[str] = ()
) -> list[str]:
    """Return one name per class, or an empty list if the names are unknown.

    Args:
        named: the user's file, or None.
        model: the bytes of the model; a labels file may be attached to it.
        classes: the number of classes of the model.
        files: names of attached files with labels, if known.

    Raises:
        FileError: the number of lines of the user's file differs from the number of classes.
    """
    if not classes:
        return []
    if named:
        return _checked(named, classes)
    attached = attached_labels(model, files)
    if len(attached) == classes:
        return attached
    return imagenet_labels(classes)


def attached_labels(model: bytes, named: Sequence[str] = ()) -> list[str]:
    """Return the lines of a text file in the ZIP archive at the end of a model.

    The function selects the first file whose name is in `named` (names in the metadata), otherwise
    the first file.
    """
    content = io.BytesIO(model)
    if not zipfile.is_zipfile(content):
        return []
    try:
        with zipfile.ZipFile(content) as archive:
            files = [each for each in archive.infolist() if each.filename.endswith(".txt")]
            files.sort(key=lambda each: each.filename not in named)
            if not files or files[0].file_size > _MAX_BYTES:
                return []
            return archive.read(files[0]).decode().splitlines()
    except Exception:  # a damaged archive may make zipfile raise anything; it has no labels
        return []


_MAX_BYTES = 1 << 20
"""Maximum size of labels in bytes, because an archive may unpack to gigabytes."""


def imagenet_labels(classes: int) -> list[str]:
    """Return ImageNet's class names for a model with 1000 or 1001 classes, else an empty list."""
    if classes not in _IMAGENET_FIRST:
        return []
    file = importlib.resources.files("litegpu.tools") / "data" / "imagenet_labels.txt"
    return file.read_text(encoding="utf-8").splitlines()[_IMAGENET_FIRST[classes] :]


_IMAGENET_FIRST = {1001: 0, 1000: 1}
"""The line of the first class, by number of classes; models with 1000 have no background."""


def _read(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"The labels file '{file}' cannot be read: {error}. Give a UTF-8 text file with one "
            "class per line."
        ) from error


def _checked(named: NamedLabels, classes: int) -> list[str]:
    if len(named.lines) != classes:
        raise FileError(
            f"The labels file '{named.file}' has {len(named.lines)} lines but the model has "
            f"{classes} classes. Give a file with one class a line."
        )
    return named.lines
