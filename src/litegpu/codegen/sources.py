"""The source files in the package: kernel templates, and files that kernels include."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@cache
def templates() -> Mapping[str, Traversable]:
    """Return all templates by name; names of CUDA-only templates start with "cuda/".

    A template is in the same folder as the code that selects its tiles.
    """
    root = _kernels()
    portable = {path.name: path for path in _templates_in(root / "portable")}
    return portable | {f"cuda/{path.name}": path for path in _templates_in(root / "cuda")}


def included(*paths: str) -> str:
    """Return the concatenated texts of files in `kernels/`."""
    return "".join(_kernels().joinpath(path).read_text(encoding="utf-8") for path in paths)


def _templates_in(folder: Traversable) -> Iterator[Traversable]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _templates_in(path)
        elif path.name.endswith(".jinja"):
            yield path


def _kernels() -> Traversable:
    return resources.files("litegpu") / "kernels"
