"""Reads the samples of `litegpu batch` from files: one picture or array per file."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import FileError
from litegpu.tools.batch.arrays import from_picture, read_array_file, takes_pictures
from litegpu.tools.console import note
from litegpu.tools.engines import Arrays, BatchPlan

PICTURES = frozenset(
    (".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpeg", ".jpg", ".jp2", ".pgm", ".png")
) | frozenset((".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp"))
ARRAYS = frozenset((".npy", ".npz"))


@dataclass(frozen=True)
class FilePreparation:
    """Converts a file, whose name is relative to `root`, to inputs.

    Pixels are normalized as (value - mean) / std.
    """

    root: str
    mean: float
    std: float

    def __call__(self, name: str, plan: BatchPlan) -> Arrays:
        """Return the inputs of a sample. Raises FileError and ModelError."""
        path = os.path.join(self.root, name)
        if Path(name).suffix.lower() in ARRAYS:
            return read_array_file(path, plan.inputs)
        return [from_picture(path, plan.inputs[0], self.mean, self.std)]


@dataclass(frozen=True)
class FileSource:
    """The samples in the files below a folder, sorted by name, or in a single file."""

    root: str
    names: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.names)

    def fingerprint(self) -> str:
        """Return a text that changes if a file is added, removed or modified."""
        digest = hashlib.sha256()
        for name in self.names:
            found = os.stat(os.path.join(self.root, name))
            digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def chunks(self, first: int, size: int) -> list[Sequence[str]]:
        """Return the samples from index `first` on, in chunks."""
        return [self.names[start : start + size] for start in range(first, self.count, size)]

    def preparation(self, mean: float, std: float) -> FilePreparation:
        """Return the function that converts a sample to inputs."""
        return FilePreparation(self.root, mean, std)

    def check(self, plan: BatchPlan) -> None:
        """Raise FileError if the model cannot run on any of the files."""
        if len(plan.inputs) == 1 and takes_pictures(plan.inputs[0], plan.batched):
            return
        if not any(Path(name).suffix.lower() in ARRAYS for name in self.names):
            inputs = ", ".join(f"'{each.name}' {list(each.shape)}" for each in plan.inputs)
            raise FileError(
                f"--input={self.root}: the files are pictures, and the model takes {inputs}. Give "
                "arrays: a .npy or .npz file for each sample, or Parquet with a column for each "
                "input."
            )


def find_files(path: str) -> FileSource:
    """Return the picture and array files at `path`, which is a file or a folder.

    Raises:
        FileError: there are no such files.
    """
    if os.path.isfile(path):
        return FileSource(os.path.dirname(path), (os.path.basename(path),))
    found, others = [], Counter[str]()
    for folder, folders, files in os.walk(path):
        folders.sort()
        for file in files:
            suffix = Path(file).suffix.lower()
            if suffix in PICTURES | ARRAYS:
                found.append(Path(folder, file).relative_to(path).as_posix())
            elif not file.startswith("."):
                others[suffix or "no suffix"] += 1
    if not found:
        raise FileError(
            f"--input={path}: the folder has no pictures ({', '.join(sorted(PICTURES))}), "
            "arrays (.npy, .npz) or tables (.parquet). Name a folder that has some."
        )
    if others:
        kinds = ", ".join(f"{suffix} ({number})" for suffix, number in sorted(others.items()))
        note(f"Skipped, because they are not pictures or arrays: {kinds}")
    return FileSource(path, tuple(sorted(found)))
