"""Writes node data for Google's Model Explorer, which shows the data in its graph view.

A file maps the names of graphs to `results`, a value for each node by the node's id. In .tflite
files, a node's id is its index in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from litegpu import DelegationReport, Profile
from litegpu.errors import OptionsError
from litegpu.tools.files import try_to_write, write_json
from litegpu.tools.flags import Flag
from litegpu.tools.reports.delegation import matched
from litegpu.tools.reports.drawing import NodeFacts, kernels_of, places_of
from litegpu.tools.reports.model_graph import ModelGraph, read_graphs
from litegpu.zoo import schema

EXPORT = Flag(
    *("export", str, None, "write node data for Model Explorer (JSON) to this file"),
    metavar="FILE",
)

_COLOURS = {"cpu": "#f2a03d", "left": "#e0c341"}
_GPU = ("#8fb8f2", "#7fd1c9", "#bda8f5", "#aed789", "#86d3f2", "#e3a4d5")
_HOT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e2543d"}]

_Own = Callable[[int, ModelGraph, DelegationReport | None], Mapping[str, Any]]
"""Returns the data of a graph, by its number and its report."""


def prepare_export(path: str | None) -> None:
    """Check, before the tool starts its work, whether node data can be written.

    Raises:
        FileError: the file cannot be written.
        MissingDependencyError: a package for reading models is not installed.
    """
    if path is not None:
        try_to_write("export", path)
        schema.tables()


def export_places(path: str | None, content: bytes, report: DelegationReport | None) -> None:
    """Write where each node runs, with the reason for nodes on the CPU.

    Raises:
        FileError: the file cannot be written.
    """

    def places(_number: int, graph: ModelGraph, own: DelegationReport | None) -> Mapping[str, Any]:
        facts = NodeFacts(places_of(own))
        found = {node.index: facts.place(node.index) for node in graph.nodes}
        return {
            "name": "where it runs (litegpu)",
            "results": {
                str(node): {"value": text, "bgColor": _colour(position)}
                for node, (position, text) in found.items()
            },
        }

    _write(path, content, report, places)


def export_times(
    path: str | None, content: bytes, report: DelegationReport | None, profile: Profile
) -> None:
    """Write the time of each node's kernels in microseconds; fused nodes have no value.

    Raises:
        FileError: the file cannot be written.
    """

    def times(number: int, graph: ModelGraph, own: DelegationReport | None) -> Mapping[str, Any]:
        facts = NodeFacts(kernels=kernels_of(own, profile, number))
        found = ((node.index, facts.seconds(node.index)) for node in graph.nodes)
        values = ((node, seconds * 1e6) for node, seconds in found if seconds is not None)
        return {"name": "µs on the GPU (litegpu)", **_heated(values)}

    _write(path, content, report, times)


def export_errors(
    path: str | None,
    content: bytes,
    report: DelegationReport | None,
    errors: Mapping[int, float],
) -> None:
    """Write the error of each node of the main graph relative to the CPU.

    Raises:
        FileError: the file cannot be written.
    """

    def own(number: int, _graph: ModelGraph, _own: DelegationReport | None) -> Mapping[str, Any]:
        values = {} if number else errors
        return {"name": "error, of the largest magnitude (litegpu)", **_heated(values.items())}

    _write(path, content, report, own)


def needs_nodes(path: str | None, per_node: bool) -> None:
    """Raise OptionsError if the flags request a file of node errors without computing them."""
    if path is not None and not per_node:
        raise OptionsError(
            f"--export={path} contains the error of each node: give --per_node as well."
        )


def _write(path: str | None, content: bytes, report: DelegationReport | None, own: _Own) -> None:
    if path is None:
        return
    graphs = read_graphs(content)
    found: dict[str, Mapping[str, Any]] = {}
    for number, (graph, part) in enumerate(zip(graphs, matched(graphs, report), strict=True)):
        # Of equal names, the main graph's counts.
        found.setdefault(graph.name, own(number, graph, part))
    write_json("export", path, found)


def _heated(values: Iterable[tuple[int, float]]) -> Mapping[str, Any]:
    return {"results": {str(node): {"value": each} for node, each in values}, "gradient": _HOT}


def _colour(where: str) -> str:
    return _COLOURS.get(where) or _GPU[int(where.removeprefix("gpu"))]
