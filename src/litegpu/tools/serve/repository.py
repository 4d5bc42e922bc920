"""Finds the models of a command line: files, known names, and folders with versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu import zoo
from litegpu.errors import ModelError, OptionsError
from litegpu.files import CONTAINER_SUFFIXES
from litegpu.language_model.file import is_language_container
from litegpu.tools.models import find_container
from litegpu.wording import printable

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_VERSION = re.compile(r"[1-9]\d{0,17}", re.ASCII)
_SUFFIXES = (".tflite", *CONTAINER_SUFFIXES)
_FIRST = "1"
"""The version number of a model that is a single file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model to serve."""

    name: str
    version: str
    path: str
    """The model's name or path, as `find_model` accepts it."""

    def is_language_model(self, tokenizer: bool) -> bool:
        """Whether the entry is a language model; `tokenizer` is whether --tokenizer is set.

        Raises ModelError for a damaged bundle, and OptionsError for an unknown zoo model.
        """
        if zoo.is_zoo_name(self.path):
            return zoo.is_language_model(self.path)
        container = find_container(self.path)
        return tokenizer if container is None else is_language_container(container)


def entries_of(words: Sequence[str]) -> list[Entry]:
    """Return the models of a command line: MODEL, NAME=MODEL, or folders of versions.

    A folder contains one model, with a subfolder for each version (`1/model.tflite`), or several
    folders of this kind.

    Raises:
        OptionsError: two models have the same name and version, or a name is invalid.
        ModelError: a folder has no model.
    """
    found: dict[tuple[str, str], Entry] = {}
    for word in words:
        for entry in _entries(word):
            key = entry.name, entry.version
            if key in found:
                raise OptionsError(
                    f"'{entry.path}' and '{found[key].path}' are both version {entry.version} of "
                    f"the model '{entry.name}'. Give one of them another name: NAME={entry.path}."
                )
            found[key] = entry
    return [*found.values()]


def _entries(word: str) -> Iterator[Entry]:
    name, equals, path = word.partition("=")
    if not equals or not _NAME.fullmatch(name):
        name, path = "", word
    if not zoo.is_zoo_name(path) and Path(path).is_dir():
        yield from _of_folder(name, Path(path))
    else:
        yield Entry(name or _name_of(path), _FIRST, path)


def _name_of(path: str) -> str:
    """Return the default name of a model: the file's name or the zoo name."""
    if zoo.is_zoo_name(path):
        stem = path.partition(":")[2].partition("?")[0]
    else:
        last = re.split(r"[/\\:]", path)[-1]
        stem = next((last.removesuffix(each) for each in _SUFFIXES if last.endswith(each)), last)
    if not _NAME.fullmatch(stem):
        raise OptionsError(
            f"'{printable(path)}' is not usable as a name in URLs. Give a name of letters, "
            f"digits, '.', '_' and '-': NAME={printable(path)}."
        )
    return stem


def _of_folder(name: str, folder: Path) -> Iterator[Entry]:
    name = name or _name_of(folder.resolve().name)
    if versions := _versions(folder):
        for version in versions:
            yield Entry(name, version.name, _model_in(version))
        return
    models = [each for each in sorted(folder.iterdir()) if each.is_dir() and _versions(each)]
    if not models:
        raise ModelError(
            f"The folder '{printable(str(folder))}' has no model. Use NAME/1/model.tflite: a "
            "folder for each model with a folder for each version number."
        )
    for each in models:
        yield from _of_folder(_name_of(each.name), each)


def _versions(folder: Path) -> list[Path]:
    """Return the version folders of a model, the oldest first."""
    found = (each for each in folder.iterdir() if each.is_dir() and _VERSION.fullmatch(each.name))
    return sorted(found, key=lambda each: int(each.name))


def _model_in(folder: Path) -> str:
    files = sorted(each for each in folder.iterdir() if each.name.endswith(_SUFFIXES))
    preferred = [each for each in files if each.stem == "model"]
    chosen = preferred or files
    if len(chosen) != 1:
        raise ModelError(
            f"The folder '{printable(str(folder))}' has {len(files)} model files. Put one there, "
            "and call it model.tflite."
        )
    return str(chosen[0])
