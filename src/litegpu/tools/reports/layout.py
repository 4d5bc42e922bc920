"""Lays out a graph in layers, with all edges pointing down."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from litegpu.errors import missing_dependency

Edge = tuple[int, int]
Point = tuple[float, float]

_BEND = 0.35
"""Width, in columns, that an edge needs in each layer that it crosses."""
_MAX_PASSED = 40_000
"""Maximum total number of layers that edges cross; larger layouts take too long."""


@dataclass(frozen=True)
class Layout:
    """The centers of the nodes, and the points of each edge, in columns and layers.

    The origin (0, 0) is the left and top of the layout.
    """

    nodes: Mapping[int, Point]
    edges: Mapping[Edge, Sequence[Point]]
    width: float
    height: float


def check_packages() -> None:
    """Raise MissingDependencyError if graphs cannot be laid out."""
    _library()


def layered(nodes: Iterable[int], edges: Iterable[Edge]) -> Layout:
    """Return a layered layout of a directed graph (Sugiyama's method).

    Edges from a node to itself are omitted; edges that close a cycle point up.

    Raises:
        MissingDependencyError: the required package is not installed.
    """
    library = _library()
    known = list(nodes)
    wanted = sorted({edge for edge in edges if edge[0] != edge[1]})
    if library is None:
        return _from_zero(_in_one_column(known, wanted))
    near = _short_edges(wanted)
    found = _by(library, known, near)
    far = {(a, b): _bow(found.nodes[a], found.nodes[b]) for a, b in {*wanted}.difference(near)}
    return _from_zero(replace(found, edges={**found.edges, **far}))


def _library() -> Any:
    """Return the module fast_sugiyama; None for unsupported versions of Python."""
    if sys.version_info < (3, 11):
        return None
    try:
        return importlib.import_module("fast_sugiyama")
    except ImportError as error:
        raise missing_dependency("fast-sugiyama", "report", "Drawing a graph") from error


def _short_edges(edges: Sequence[Edge]) -> list[Edge]:
    """Return the shortest edges within the limit of the total number of crossed layers."""
    layers = _layers(edges)
    spans = [abs(layers[target] - layers[source]) - 1 for source, target in edges]
    order = sorted(range(len(edges)), key=spans.__getitem__)
    passed = itertools.accumulate(max(spans[position], 0) for position in order)
    return [
        edges[position]
        for position, total in zip(order, passed, strict=True)
        if total <= _MAX_PASSED
    ]


def _layers(edges: Sequence[Edge]) -> dict[int, int]:
    """Return the layer of each node: the length of the longest path before it, up to cycles."""
    after: dict[int, list[int]] = {node: [] for edge in edges for node in edge}
    missing = dict.fromkeys(after, 0)
    for source, target in edges:
        after[source].append(target)
        missing[target] += 1
    layers = dict.fromkeys(after, 0)
    ready = [node for node, count in missing.items() if not count]
    while ready:
        node = ready.pop()
        for target in after[node]:
            layers[target] = max(layers[target], layers[node] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return layers


def _by(library: Any, nodes: Sequence[int], edges: Sequence[Edge]) -> Layout:
    """Lay out the connected components in a row; isolated nodes come last."""
    linked = sorted({node for edge in edges for node in edge})
    number = {node: index for index, node in enumerate(linked)}
    wanted = {(number[source], number[target]) for source, target in edges}
    spots: dict[int, Point] = {}
    paths: dict[Edge, Sequence[Point]] = {}
    left = 0.0
    parts = library.from_edges(
        sorted(wanted), vertex_spacing=1, dummy_vertices=True, dummy_size=_BEND
    )
    for positions, width, height, links in parts if edges else ():
        own = {index: (x + left, height - y) for index, (x, y) in positions}
        # A number beyond all nodes is a point of a long edge.
        spots |= {linked[index]: at for index, at in own.items() if index < len(linked)}
        for (source, target), path in _paths(own, links or (), len(linked)):
            if (source, target) in wanted:
                paths[linked[source], linked[target]] = path
            else:  # reversed, to break a cycle
                paths[linked[target], linked[source]] = path[::-1]
        left += width + 1
    for node in nodes:
        if node not in spots:
            spots[node] = (left, 0.0)
            left += 1
    return Layout(spots, paths, 0, 0)


def _paths(
    positions: Mapping[int, Point], links: Iterable[Edge], real: int
) -> Iterator[tuple[Edge, list[Point]]]:
    """Yield each edge with its points; nodes with numbers from `real` on are bends of edges."""
    starts = [link for link in links if link[0] < real]
    after = {source: target for source, target in links if source >= real}
    for source, target in starts:
        path = [positions[source], positions[target]]
        while target >= real:
            target = after[target]
            path.append(positions[target])
        yield (source, target), path


def _in_one_column(nodes: Sequence[int], edges: Sequence[Edge]) -> Layout:
    """Lay out all nodes in one column; edges that skip nodes bend around the skipped nodes."""
    positions = {node: (0.0, float(row)) for row, node in enumerate(nodes)}
    paths: dict[Edge, Sequence[Point]] = {}
    for source, target in edges:
        paths[source, target] = _bow(positions[source], positions[target])
    return Layout(positions, paths, 0, 0)


def _bow(start: Point, end: Point) -> list[Point]:
    """Return a path that bends around the nodes between two points."""
    (left, top), (right, bottom) = start, end
    skipped = abs(bottom - top) - 1
    bend = [(max(left, right) + 1 + skipped / 50, (top + bottom) / 2)] if skipped > 0 else []
    return [start, *bend, end]


def _from_zero(layout: Layout) -> Layout:
    points = [*layout.nodes.values(), *(p for path in layout.edges.values() for p in path)]
    if not points:
        return layout
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, top = min(xs), min(ys)
    return Layout(
        {node: (x - left, y - top) for node, (x, y) in layout.nodes.items()},
        {e: [(x - left, y - top) for x, y in path] for e, path in layout.edges.items()},
        max(xs) - left,
        max(ys) - top,
    )
