"""Draws the layers of litegpu from its imports.

A layer is a package or a module right below `litegpu`; `litegpu` itself stands for the names that
the package offers, which its own file looks up when they are first used. Imports for type checkers
count as well.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "litegpu"
PACKAGE = "litegpu"


def modules() -> dict[str, Path]:
    """Return every module by its full name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def layer_of(module: str) -> str:
    """Return the layer of a module."""
    _, _, rest = module.partition(".")
    return rest.split(".")[0] or PACKAGE


def imported(path: Path, names: Collection[str]) -> set[str]:
    """Return the modules among `names` that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in names else str(node.module))
    return found & set(names)


@functools.cache
def by_file() -> Mapping[str, frozenset[str]]:
    """Return what each module imports. The files are read once."""
    files = modules()
    found = {name: frozenset(imported(path, files) - {name}) for name, path in files.items()}
    return {**found, PACKAGE: frozenset({f"{PACKAGE}.version"})}


def by_package(graph: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Return what each file imports, with the files of one backend as one."""
    found: dict[str, set[str]] = {}
    for name, used in graph.items():
        found.setdefault(_backend_of(name), set()).update(map(_backend_of, used))
    return {name: used - {name} for name, used in found.items()}


def _backend_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:3]) if parts[1:2] == ["backends"] and len(parts) > 3 else module


def by_layer() -> dict[str, set[str]]:
    """Return what each layer imports, sorted so that all of it stands above."""
    found: dict[str, set[str]] = {}
    for name, used in by_file().items():
        layer = layer_of(name)
        found.setdefault(layer, set()).update(map(layer_of, used))
    return {layer: found[layer] - {layer} for layer in ordered(found)}


def ordered(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Sort names so that what each needs stands before it, lowest layers first.

    Raises graphlib.CycleError if some need each other.
    """
    needs = {name: set(used) - {name} for name, used in graph.items()}
    sorter = graphlib.TopologicalSorter(needs)
    sorter.prepare()
    found: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        found.extend(ready)
        sorter.done(*ready)
    return found
