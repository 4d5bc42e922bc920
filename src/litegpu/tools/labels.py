"""Names of classes: from a file, from the model file itself, or those of ImageNet."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import DownloadError, FileError, MissingDependencyError
from litegpu.tools.console import note
from litegpu.tools.downloads import Asset, fetch
from litegpu.tools.models import MEDIAPIPE, model_folders

IMAGENET_CLASSES = 1001  # 1000 and the background class in front
IMAGENET = Asset(
    "imagenet_labels.txt",
    MEDIAPIPE + "labels.txt?generation=1667892497527642",
    "536feacc519de3d418de26b2effb4d75694a8c4c0063e36499a46fa8061e2da9",
)


@dataclass(frozen=True)
class NamedLabels:
    """The lines of a text file that the user named."""

    file: str
    lines: list[str]


def read_labels(file: str | None) -> NamedLabels | None:
    """Return the lines of a text file, one class a line, or None without one.

    Raises FileError when it cannot be read.
    """
    return None if file is None else NamedLabels(file, _read(file))


def find_labels(
    named: NamedLabels | None, model: bytes, classes: int, files: Sequence[str] = ()
) -> list[str]:
    """Return one name per class, or an empty list when nobody knows them.

    Args:
        named: what the user named, or None.
        model: the bytes of the model; a labels file may be attached to it.
        classes: how many classes the model tells apart.
        files: names of attached files that hold labels, where they are known.

    Raises:
        FileError: the file that the user named has another number of lines.
    """
    if not classes:
        return []
    if named:
        return _checked(named, classes)
    attached = attached_labels(model, files)
    if len(attached) == classes:
        return attached
    return imagenet_labels() if classes == IMAGENET_CLASSES else []


def attached_labels(model: bytes, named: Sequence[str] = ()) -> list[str]:
    """Return the lines of a text file zipped onto the end of a model.

    It is the first of those that `named` has, such as what the metadata name; else the first.
    """
    content = io.BytesIO(model)
    if not zipfile.is_zipfile(content):
        return []
    try:
        with zipfile.ZipFile(content) as archive:
            files = [each for each in archive.infolist() if each.filename.endswith(".txt")]
            files.sort(key=lambda each: each.filename not in named)
            if not files or files[0].file_size > _MOST_BYTES:
                return []
            return archive.read(files[0]).decode().splitlines()
    except Exception:  # whatever a damaged archive makes zipfile raise, it has no labels
        return []


_MOST_BYTES = 1 << 20
"""More than any list of labels has: an archive may promise to unpack to gigabytes."""


def imagenet_labels() -> list[str]:
    """Return the ImageNet class names that lie next to the models or can be fetched, else []."""
    for folder in model_folders():
        local = folder.parent / "images" / "imagenet" / "labels.txt"
        if local.is_file():
            return _read(str(local))
    try:
        return _read(str(fetch(IMAGENET)))
    except (DownloadError, MissingDependencyError) as error:
        note(f"The names of the ImageNet classes are not here; showing class numbers. {error}")
        return []


def _read(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"The labels file '{file}' cannot be read: {error}. "
            "Give a UTF-8 text file with one class a line."
        ) from error


def _checked(named: NamedLabels, classes: int) -> list[str]:
    if len(named.lines) != classes:
        raise FileError(
            f"The labels file '{named.file}' has {len(named.lines)} lines but the model tells "
            f"{classes} classes apart. Give a file with one class a line."
        )
    return named.lines
