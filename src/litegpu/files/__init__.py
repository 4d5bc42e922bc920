"""Model files: .tflite, and containers of models (.task, .zip, .litertlm).

Files are memory-mapped: listing a container reads its directory, not the weights. The name of a
member has the form `bundle.task:member.tflite`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from litegpu.errors import ModelError, did_you_mean
from litegpu.files.members import (
    LITERTLM_IDENTIFIER,
    MODEL,
    MODEL_IDENTIFIER,
    WEIGHTS,
    ZIP_IDENTIFIERS,
    Member,
)
from litegpu.host.mapped_files import map_file
from litegpu.wording import printable, shown_size

__all__ = [
    "CONTAINER_SUFFIXES",
    "MODEL",
    "MODEL_IDENTIFIER",
    "WEIGHTS",
    "Container",
    "Member",
    "located",
    "map_file",
    "map_model",
    "open_container",
    "open_content",
    "read_model",
]

CONTAINER_SUFFIXES = (".task", ".zip", ".litertlm")
"""The usual suffixes of containers; the content of a file determines whether it is a container."""


@dataclass(frozen=True, slots=True)
class Container:
    """A file with several members."""

    path: str
    members: tuple[Member, ...]

    @property
    def models(self) -> tuple[Member, ...]:
        """The members that are .tflite models."""
        return tuple(each for each in self.members if each.kind == MODEL)

    def model(self, name: str = "") -> Member:
        """Return the model with a name; without a name, the only model.

        Raises:
            ModelError: the container has no such model, or has several models and `name` is
                missing.
        """
        models = {each.name: each for each in self.models}
        if not models:
            raise ModelError(
                f"'{printable(self.path)}' has no .tflite model in {len(self.members)} members. "
                "Give a file with one."
            )
        if name:
            if name not in models:
                hint = did_you_mean(name, map(printable, models))
                raise ModelError(f"'{printable(self.path)}' has no model '{name}'.{hint}")
            return models[name]
        if len(models) > 1:
            listed = ", ".join(
                f"{printable(each.name)} ({shown_size(each.size)})" for each in models.values()
            )
            raise ModelError(
                f"'{printable(self.path)}' has {len(models)} models: {listed}. Name one, such as "
                f"'{printable(self.path)}:{printable(next(iter(models)))}'."
            )
        return next(iter(models.values()))


def located(name: str | os.PathLike[str]) -> tuple[str, str]:
    """Split a name such as `bundle.task:member.tflite` into path and member.

    The path is the longest prefix of the name, up to a colon, that is an existing file. A path may
    therefore contain drive letters and colons. The member is empty if the whole name is a path.
    """
    text = os.fspath(name)
    at = len(text)
    while at > 0:
        if os.path.isfile(text[:at]):
            return text[:at], text[at + 1 :]
        at = text.rfind(":", 0, at)
    return text, ""


def open_container(path: str | os.PathLike[str]) -> Container | None:
    """Return the container in a file; None if the file is not a container.

    Raises:
        ModelError: the container is damaged.
        OSError: the file cannot be read.
    """
    return open_content(os.fspath(path), map_file(path))


def map_model(name: str | os.PathLike[str]) -> memoryview:
    """Return the bytes of a .tflite file or of a model in a container, memory-mapped if possible.

    The function checks the bytes only if the file is a container.

    Raises:
        ModelError: the container is damaged, or the name does not identify one model.
        OSError: the file cannot be read.
    """
    path, member = located(name)
    data = map_file(path)
    container = open_content(path, data)
    if container is not None:
        return container.model(member).view()
    if member:
        raise ModelError(
            f"'{printable(path)}' is not a bundle (.task, .zip, .litertlm): it has no member "
            f"'{printable(member)}'. Give the path alone."
        )
    return data


def read_model(name: str | os.PathLike[str]) -> bytes:
    """Return a copy of the bytes that `map_model` returns. Raises as `map_model` does."""
    return bytes(map_model(name))


def open_content(path: str, data: memoryview) -> Container | None:
    """Return the container with this content; None if it is not a container.

    `path` appears in error messages only. Raises ModelError for a damaged container.
    """
    start = bytes(data[:8])
    if start == LITERTLM_IDENTIFIER:
        from litegpu.files import litertlm

        return Container(path, tuple(litertlm.members(path, data)))
    if start[:4] in ZIP_IDENTIFIERS:
        from litegpu.files import bundles

        return Container(path, tuple(bundles.members(path, data)))
    return None
