"""Draws a model's graph, with the device, reason, time and error of each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from litegpu import DelegationReport, KernelProfile, Profile
from litegpu.tools.reports.layout import Edge, Layout, Point, layered
from litegpu.tools.reports.model_graph import ModelGraph, Node
from litegpu.tools.reports.sections import Box, Drawing, Heat, Line
from litegpu.tools.reports.words import percent, shape_text, short, us
from litegpu.wording import counted, shown_nodes

_WIDTH, _HEIGHT = 176, 40
_COLUMN, _LAYER = 204, 66
_CHIP, _CHIPS = 9, 6
"""The size of a small box (chip) within a node's box, and the maximum number of chips."""
_COLOURS = 6
"""Number of partition colors; further partitions reuse the colors."""
CPU = "cpu"


@dataclass(frozen=True)
class NodeFacts:
    """Facts about a graph's nodes, by index, in addition to the facts in the file.

    `places` has a legend color and a text for each node. `errors` are relative to a tensor's
    largest magnitude. `marked` has the nodes to highlight.
    """

    places: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    kernels: Mapping[int, Sequence[KernelProfile]] = field(default_factory=dict)
    errors: Mapping[int, float] = field(default_factory=dict)
    marked: frozenset[int] = frozenset()

    def place(self, node: int) -> tuple[str, str]:
        """Return where a node runs: on the CPU, unless a delegate runs it."""
        return self.places.get(node, (CPU, "on the CPU"))

    def own(self, node: int) -> list[KernelProfile]:
        """Return the kernels of a node itself, without kernels that compute it by fusion."""
        return [each for each in self.kernels.get(node, ()) if each.node == node]

    def seconds(self, node: int) -> float | None:
        """Return the total time of the kernels from `own`; None if not measured."""
        own = self.own(node)
        return sum(each.seconds for each in own) if own else None


def places_of(report: DelegationReport | None) -> dict[int, tuple[str, str]]:
    """Return a color and a text for where each node runs, with the reason for CPU nodes.

    Args:
        report: the report of the drawn graph; None if no delegate was applied.
    """
    found: dict[int, tuple[str, str]] = {}
    if report is None:
        return found
    for number, part in enumerate(report.partitions):
        for node in part.nodes:
            found[node] = (f"gpu{number % _COLOURS}", f"on the GPU, partition {number}")
    for rejected in report.rejected:
        found[rejected.index] = (CPU, f"on the CPU: {rejected.reason}")
    for left in report.left_out:
        for node in left.nodes:
            found[node] = ("left", f"on the CPU, although the GPU could run it: {left.reason}")
    return found


def kernels_of(
    report: DelegationReport | None, profile: Profile | None, graph: int
) -> dict[int, list[KernelProfile]]:
    """Return the kernels that compute each node of the report's graph, the graph's number given."""
    found: dict[int, list[KernelProfile]] = defaultdict(list)
    if report is None or profile is None:
        return found
    own = {part.nodes for part in report.partitions}
    for part in profile.partitions:
        for kernel in part.kernels if part.graph == graph and part.nodes in own else ():
            for node in dict.fromkeys((kernel.node, *kernel.merged)):
                found[node].append(kernel)
    return found


def draw(graph: ModelGraph, facts: NodeFacts, title: str) -> Drawing:
    """Return the drawing of a graph.

    A node that reads only constants, such as the DEQUANTIZE of weights, is a small box inside the
    first node that reads its result.

    Raises:
        MissingDependencyError: a package for laying out graphs is not installed.
    """
    carried = _carried(graph)
    ends = _Ends(graph)
    shown = [node.index for node in graph.nodes if node.index not in carried]
    edges = _edges(graph, carried, ends)
    layout = layered([*shown, *ends.nodes], edges)
    chips: dict[int, list[Node]] = defaultdict(list)
    for node, reader in carried.items():
        chips[reader].append(graph.nodes[node])
    heats = list(_heats(graph, facts))
    boxes = [
        _box(graph, facts, heats, graph.nodes[node], layout.nodes[node], chips[node])
        for node in shown
    ]
    return Drawing(
        title,
        layout.width * _COLUMN + _WIDTH + 2 * _MARGIN,
        layout.height * _LAYER + _HEIGHT + 2 * _MARGIN,
        [*ends.boxes(layout), *boxes],
        list(_lines(layout, edges)),
        list(_legend(graph, facts)),
        [heat.scale for heat in heats],
        {str(node.index): _details(graph, facts, node) for node in graph.nodes} | ends.details(),
        _note(carried),
    )


_MARGIN = 24


def _note(carried: Mapping[int, int]) -> str:
    if not carried:
        return ""
    return (
        f"{counted(len(carried), 'node')} that compute{'s' * (len(carried) == 1)} constants only "
        "(such as the DEQUANTIZE of weights) are the small squares in the nodes that read them."
    )


def _carried(graph: ModelGraph) -> dict[int, int]:
    """Return the nodes that read only constants, each with the node in which it is drawn."""
    producers = graph.producers()
    readers: dict[int, list[int]] = defaultdict(list)
    for node in graph.nodes:
        for tensor in node.inputs:
            if tensor in producers:
                readers[producers[tensor]].append(node.index)
    constant: set[int] = set()
    for node in graph.nodes:
        read = (graph.tensors[t].constant or producers.get(t) in constant for t in node.inputs)
        inner = not set(node.outputs) & set(graph.outputs)
        if node.inputs and all(read) and inner and readers[node.index]:
            constant.add(node.index)
    found: dict[int, int] = {}
    for index in sorted(constant, reverse=True):
        reader = readers[index][0]
        found[index] = found.get(reader, reader)
    return found


class _Ends:
    """The graph's inputs and outputs as nodes of the drawing, with numbers after all nodes."""

    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph
        first = len(graph.nodes)
        self.inputs = {tensor: first + n for n, tensor in enumerate(dict.fromkeys(graph.inputs))}
        first += len(self.inputs)
        self.outputs = {tensor: first + n for n, tensor in enumerate(dict.fromkeys(graph.outputs))}

    @property
    def nodes(self) -> list[int]:
        """The numbers of the inputs and outputs."""
        return [*self.inputs.values(), *self.outputs.values()]

    def boxes(self, layout: Layout) -> Iterator[Box]:
        """Yield the boxes of the inputs and outputs."""
        for what, ends in (("input", self.inputs), ("output", self.outputs)):
            for tensor, node in ends.items():
                about = self._graph.tensors[tensor]
                text = f"{shape_text(about.shape)} {about.type}"
                label = short(about.name.rpartition("/")[2] or what)
                yield Box(str(node), *_at(layout.nodes[node]), *_SIZE, label, text, what, {})

    def details(self) -> dict[str, Any]:
        """Return the details of each input and output."""
        return {
            str(node): {
                "title": f"{what} {index}",
                "groups": [["", list(_tensor_rows(self._graph, [tensor]))]],
            }
            for what, ends in (("input", self.inputs), ("output", self.outputs))
            for index, (tensor, node) in enumerate(ends.items())
        }


_SIZE = (_WIDTH, _HEIGHT)


def _edges(graph: ModelGraph, carried: Mapping[int, int], ends: _Ends) -> dict[Edge, str]:
    """Return the edges between nodes, and descriptions of their tensors."""
    producers = {**ends.inputs, **graph.producers()}
    found: dict[Edge, list[int]] = defaultdict(list)
    for node in graph.nodes:
        for tensor in node.inputs:
            producer = producers.get(tensor)
            if producer is not None and node.index not in carried and producer not in carried:
                found[producer, node.index].append(tensor)
    for tensor, output in ends.outputs.items():
        if tensor in producers:
            found[producers[tensor], output].append(tensor)
    return {edge: _flow(graph, tensors) for edge, tensors in found.items()}


def _flow(graph: ModelGraph, tensors: Iterable[int]) -> str:
    each = (graph.tensors[tensor] for tensor in tensors)
    return "; ".join(f"{t.name} {shape_text(t.shape)} {t.type}" for t in each)


def _at(point: Point) -> Point:
    x, y = point
    return x * _COLUMN + _WIDTH / 2 + _MARGIN, y * _LAYER + _HEIGHT / 2 + _MARGIN


def _lines(layout: Layout, edges: Mapping[Edge, str]) -> Iterator[Line]:
    for edge, text in edges.items():
        points = [_at(point) for point in layout.edges[edge]]
        (x, y), *rest = points
        last = len(rest) - 1
        parts = [f"M{x:.0f} {y + _HEIGHT / 2:.0f}"]
        y += _HEIGHT / 2
        for index, (right, down) in enumerate(rest):
            end = down - _HEIGHT / 2 if index == last else down
            middle = (y + end) / 2
            parts.append(f"C{x:.0f} {middle:.0f} {right:.0f} {middle:.0f} {right:.0f} {end:.0f}")
            x, y = right, end
        yield Line("".join(parts), text)


def _box(
    graph: ModelGraph,
    facts: NodeFacts,
    heats: Sequence[_Heated],
    node: Node,
    at: Point,
    chips: Sequence[Node],
) -> Box:
    x, y = _at(at)
    outputs = [shape_text(graph.tensors[tensor].shape) for tensor in node.outputs[:1]]
    small = [
        Box(
            str(chip.index),
            x - _WIDTH / 2 + 8 + 12 * (n % 3),
            y - 6 + 12 * (n // 3),
            *(_CHIP, _CHIP),
            *("", f"#{chip.index} {chip.op}", facts.place(chip.index)[0]),
            {heat.scale.key: heat.share(chip.index) for heat in heats if heat.knows(chip.index)},
        )
        for n, chip in enumerate(chips[:_CHIPS])
    ]
    return Box(
        *(str(node.index), x, y, *_SIZE, short(node.op)),
        " · ".join([f"#{node.index}", *outputs]),
        facts.place(node.index)[0] + " marked" * (node.index in facts.marked),
        {heat.scale.key: heat.share(node.index) for heat in heats if heat.knows(node.index)},
        small,
    )


@dataclass(frozen=True)
class _Heated:
    """A coloring of nodes by a value, such as the time."""

    scale: Heat
    values: Mapping[int, float]

    def knows(self, node: int) -> bool:
        return node in self.values

    def share(self, node: int) -> float:
        """Return the square root of a node's value relative to the maximum, from 0 to 1."""
        most = max(self.values.values())
        return round((self.values[node] / most) ** 0.5, 3) if most > 0 else 0.0


def _heats(graph: ModelGraph, facts: NodeFacts) -> Iterator[_Heated]:
    times = {n.index: s for n in graph.nodes if (s := facts.seconds(n.index)) is not None}
    if times:
        yield _Heated(Heat("time", "time", "0 µs", f"{us(max(times.values()))} µs"), times)
        lost = {
            node: max(kernel.seconds - kernel.floor_seconds, 0.0)
            for node in times
            for kernel in facts.own(node)
            if kernel.floor_seconds is not None
        }
        if lost:
            most = f"{us(max(lost.values()))} µs"
            yield _Heated(Heat("lost", "time above the floor", "0 µs", most), lost)
    finite = {n: min(error, 1.0) for n, error in facts.errors.items()}
    if finite:
        yield _Heated(Heat("error", "error", "0", f"{max(finite.values()):.1e}"), finite)


def _legend(graph: ModelGraph, facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield each color in use, with the number of nodes of that color."""
    counts: dict[str, int] = defaultdict(int)
    for node in graph.nodes:
        counts[facts.place(node.index)[0]] += 1
    names = {CPU: "CPU", "left": "CPU, though the GPU could"}
    several = len([position for position in counts if position.startswith("gpu")]) > 1
    for position in sorted(counts, key=lambda each: (not each.startswith("gpu"), each)):
        partition = f", partition {position[3:]}" if several else ""
        yield position, f"{names.get(position, f'GPU{partition}')} ({counts[position]})"


# The details of a selected node


def _details(graph: ModelGraph, facts: NodeFacts, node: Node) -> dict[str, Any]:
    groups: list[list[Any]] = [["", list(_node_rows(facts, node))]]
    for kernel in facts.kernels.get(node.index, ()):
        groups.append([f"kernel {kernel.name}", list(_kernel_rows(kernel, node))])
    groups += [
        ["inputs", list(_tensor_rows(graph, node.inputs))],
        ["outputs", list(_tensor_rows(graph, node.outputs))],
        ["options", [[name, value] for name, value in node.options.items()]],
    ]
    return {"title": f"#{node.index} {node.op}", "groups": [each for each in groups if each[1]]}


def _node_rows(facts: NodeFacts, node: Node) -> Iterator[list[str]]:
    yield ["runs", facts.place(node.index)[1]]
    seconds = facts.seconds(node.index)
    if seconds is not None:
        yield ["time", f"{us(seconds)} µs"]
    if node.index in facts.errors:
        yield ["error", f"{facts.errors[node.index]:.3g} of its largest magnitude"]


def _kernel_rows(kernel: KernelProfile, node: Node) -> Iterator[list[str]]:
    yield ["template", kernel.template]
    others = [n for n in (kernel.node, *kernel.merged) if n not in (node.index, -1)]
    if others:
        yield ["computes also", shown_nodes(others)]
    yield ["time", f"{us(kernel.seconds)} µs"]
    if kernel.floor_seconds is not None:
        yield ["floor", f"{us(kernel.floor_seconds)} µs ({percent(kernel.floor_share)})"]
    if kernel.flops:
        yield ["arithmetic", f"{kernel.flops_per_second / 1e9:.1f} GFLOP/s"]
    yield ["memory", f"{kernel.bytes_per_second / 1e9:.1f} GB/s"]
    yield ["writes", shape_text(kernel.shape)]


def _tensor_rows(graph: ModelGraph, tensors: Iterable[int]) -> Iterator[list[str]]:
    for tensor in tensors:
        about = graph.tensors[tensor]
        kind = "constant " * about.constant
        quantized = f", {about.quantization}" * bool(about.quantization)
        yield [short(about.name, 120), f"{kind}{shape_text(about.shape)} {about.type}{quantized}"]
