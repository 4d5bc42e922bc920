"""Values of options, checked."""

from __future__ import annotations

import enum
import operator
import os
from collections.abc import Mapping
from typing import Any, Literal

from litegpu import config
from litegpu.errors import OptionsError, did_you_mean

Precision = Literal["fp32", "fp16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
PrecisionName = Literal["fp32", "float32", "single", "fp16", "float16", "half"]
_PRECISION_NAMES: Mapping[str, Precision] = {
    **dict.fromkeys(("fp32", "float32", "single"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
}
BackendName = (
    Literal[
        "auto", "gpu", "cuda", "opencl", "cl", "webgpu", "vulkan", "metal", "d3d12", "opengl", "gl"
    ]
    | str
)
"""What `backend` may be; listed so that editors offer the names."""
Names = type[enum.IntEnum] | type[enum.IntFlag]


def whole(name: str, value: Any, names: Names | None = None) -> int:
    """Return a whole number. Raises OptionsError with the option's name, and numbers with names."""
    try:
        return operator.index(value)
    except TypeError:
        kinds = "a device's number or part of its name" if name == "device" else "a whole number"
        known = f" litegpu.{names.__name__} has them: {members(names)}." if names else ""
        raise OptionsError(f"{name} must be {kinds}, not {value!r}.{known}") from None


def text(name: str, value: Any) -> str | None:
    """Return text or None; of a path its text. Raises OptionsError with the option's name."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is None or (isinstance(path, str) and "\0" not in path):
        return path
    raise OptionsError(f"{name} must be text without null characters, not {value!r}.")


def members(names: Names) -> str:
    """Return the names of an enum with their numbers."""
    return ", ".join(f"{member.name} ({int(member)})" for member in names)


def precision_of(name: Any) -> Precision:
    """Return the precision that a name stands for. Raises OptionsError for an unknown name."""
    found = _PRECISION_NAMES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        hint = did_you_mean(str(name), _PRECISION_NAMES)
        raise OptionsError(f"Unknown precision '{name}'.{hint}")
    return found


def check_truth(name: str, value: Any) -> None:
    """Raise OptionsError unless an option is True, False or None."""
    if not isinstance(value, bool | None):
        folder = " or a folder" if name == "cache" else ""
        raise OptionsError(f"{name} must be True, False or None{folder}, not {value!r}.")


def cache_folder_of(cache: str | os.PathLike[str], other: str | os.PathLike[str] | None) -> str:
    """Return the folder that `cache` names. Raises OptionsError if `other` names another one."""
    folder = text("cache", cache)
    if not folder or not config.is_folder_name(folder):
        check_truth("cache", cache)
    if other is not None and text("serialization_dir", other) != folder:
        raise OptionsError(
            f"cache and serialization_dir name two folders, '{folder}' and '{other}'. Give one of "
            "them."
        )
    return str(folder)
