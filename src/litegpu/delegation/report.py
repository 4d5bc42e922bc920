"""The report after a delegate was applied: which nodes run where, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from litegpu.delegation import notebook
from litegpu.delegation.cost_model import Estimate, Split
from litegpu.graph import Graph, Node
from litegpu.wording import (
    about,
    counted,
    printable,
    shown_names,
    shown_nodes,
    shown_ops,
    shown_size,
    wrapped,
)


@dataclass(frozen=True, slots=True)
class RejectedNode:
    """A node that stays on the CPU, with the reason."""

    index: int
    op: str
    version: int
    reason: str


def rejected_nodes(graph: Graph, reasons: Mapping[int, str]) -> tuple[RejectedNode, ...]:
    """Return the nodes for which there is a reason, with the reason."""
    return tuple(
        RejectedNode(node.index, node.op, node.version, reasons[node.index])
        for node in graph.nodes
        if node.index in reasons
    )


@dataclass(frozen=True, slots=True)
class Composite:
    """The STABLEHLO_COMPOSITE nodes of one name, such as "odml.rms_norm".

    litegpu replaces a composite by the nodes of its graph. `inner_nodes` is the total number of
    nodes in the graphs of these composites, or 0 if litegpu could not read the graphs.
    """

    name: str
    nodes: tuple[int, ...]
    inner_nodes: int


def composites(graph: Graph) -> tuple[Composite, ...]:
    """Return the composites of a graph by name, in the order in which they first occur."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "STABLEHLO_COMPOSITE":
            found.setdefault(node.params.get("name", ""), []).append(node)
    return tuple(
        Composite(
            name,
            tuple(node.index for node in nodes),
            sum(len(inner.nodes) for node in nodes for inner in node.graphs),
        )
        for name, nodes in found.items()
    )


@dataclass(frozen=True, slots=True)
class QuantizedSupport:
    """The nodes of a quantized graph that the GPU could run with `mode`: "exact" or "float".

    `nodes` is the number of nodes that the GPU could run; `rejected` are the others.
    """

    mode: str
    nodes: int
    rejected: tuple[RejectedNode, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that run on the GPU together, as one node of the runtime. Sizes are in bytes.

    `arena_bytes` is the device memory for activations; no memory plan can need less than
    `lower_bound_bytes`. `constant_bytes` is the memory for weights. `estimate` contains the
    estimated times by which the partition was selected; for a software device, the times are those
    of a typical GPU. `kept_float32` names the tensors that are float32 because their values
    overflowed float16 in a run. `replaced` has a line for each kernel that failed on the device:
    the replacement, and the reason. `on_cpu` is the reason why the CPU runs the partition for the
    current input shapes, or empty if the GPU runs the partition. `loop_passes` is the number of
    iterations per batch, for a loop whose number of iterations depends on data. The host reads the
    loop's condition once per batch. `loop_passes` is 0 for all other partitions.
    """

    nodes: tuple[int, ...]
    kernels: int
    arena_bytes: int
    lower_bound_bytes: int
    constant_bytes: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    estimate: Estimate | None = None
    kept_float32: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    on_cpu: str = ""
    loop_passes: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Nodes that run on the CPU although the GPU supports them; the reason, and an estimate."""

    nodes: tuple[int, ...]
    reason: str
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """A possible change of a model or its options, and its estimated saving.

    `kind` is "blocker" (nodes that the GPU cannot run), "quantized" (such nodes that compute with
    8-bit integers), "weights" (such nodes with 8-bit weights), "partitions", "moves" (kernels that
    move data), "lanes" (padding) or "precision". `seconds` is the estimated time that an invoke
    would save; None if unknown.
    """

    kind: str
    text: str
    nodes: tuple[int, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DelegationReport:
    """The nodes that a delegate runs; `str(report)` is a table, `to_dict()` is JSON-able."""

    backend: str
    device: str
    precision: str
    total_nodes: int
    ops: Mapping[int, str]
    """The op name of each node."""
    rejected: tuple[RejectedNode, ...] = ()
    partitions: tuple[Partition, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    split: Split | None = None
    """The cost of transfers between CPU and GPU; None if only one of them runs the graph."""
    advice: tuple[Advice, ...] = ()
    """Possible changes of the model or options, sorted by estimated saving, largest first."""
    notes: tuple[str, ...] = field(default=())
    """Errors, and notes about the results, one line per item."""
    quantized: tuple[QuantizedSupport, ...] = ()
    """The nodes that each quantized mode could run, the chosen mode first; () for float models."""
    subgraphs: tuple[DelegationReport, ...] = ()
    """The reports on the model's other graphs: other signatures, bodies of IF and WHILE."""
    composites: tuple[Composite, ...] = ()
    """The composites of the graph by name; their op in `ops` is STABLEHLO_COMPOSITE."""
    graph: int = 0
    """The number of the graph in the model."""

    @property
    def delegated_nodes(self) -> list[int]:
        """Numbers of the nodes that run on the GPU, in order."""
        return sorted(index for part in self.partitions for index in part.nodes)

    @property
    def whole_graph(self) -> bool:
        """Whether a single partition runs every node."""
        return len(self.partitions) == 1 and len(self.delegated_nodes) == self.total_nodes

    def to_dict(self) -> dict[str, Any]:
        """Return all contents of the report as JSON-able data."""
        return {
            "backend": self.backend,
            "device": self.device,
            "precision": self.precision,
            "graph": self.graph,
            "total_nodes": self.total_nodes,
            "delegated_nodes": self.delegated_nodes,
            "rejected": [asdict(node) for node in self.rejected],
            "partitions": [asdict(part) for part in self.partitions],
            "left_out": [asdict(each) for each in self.left_out],
            "split": asdict(self.split) if self.split else None,
            "advice": [asdict(each) for each in self.advice],
            "notes": list(self.notes),
            "quantized": [asdict(each) for each in self.quantized],
            "composites": [asdict(each) for each in self.composites],
            "subgraphs": [each.to_dict() for each in self.subgraphs],
        }

    def with_partition(self, old: Partition, new: Partition) -> DelegationReport:
        """Return the report with one partition replaced, in the main graph or a subgraph."""
        if any(part is old for part in self.partitions):
            partitions = tuple(new if part is old else part for part in self.partitions)
            return replace(self, partitions=partitions)
        if not self.subgraphs:
            return self
        return replace(
            self, subgraphs=tuple(each.with_partition(old, new) for each in self.subgraphs)
        )

    def summary(self) -> str:
        """Return the summary in the wording of TensorFlow Lite."""
        gpu = len(self.delegated_nodes)
        cpu = self.total_nodes - gpu
        if not gpu:
            every = "the only one" if cpu == 1 else f"all {cpu} operations"
            return f"No operations will run on the GPU, and {every} will run on the CPU."
        return (
            f"{counted(gpu, 'operation')} will run on the GPU, "
            f"and the remaining {counted(cpu, 'operation')} will run on the CPU."
        )

    def _repr_html_(self) -> str:
        """Return tables for notebooks."""
        title = f"litegpu on {self.device} ({self.backend}, {self.precision})"
        parts = [notebook.paragraph(title, bold=True), *self._html_parts()]
        for number, each in enumerate(self.subgraphs, start=1):
            parts += [notebook.paragraph(_subgraph(number), bold=True), *each._html_parts()]
        return "".join(parts)

    def _html_parts(self) -> Iterator[str]:
        """Yield the tables of one graph."""
        yield notebook.paragraph(self.summary())
        yield notebook.table(
            (">partition", ">nodes", ">kernels", ">memory", ">weights", "operations"),
            [
                (
                    *(str(number), str(len(part.nodes)), str(part.kernels)),
                    *(shown_size(part.arena_bytes), shown_size(part.constant_bytes)),
                    shown_ops(self.ops[index] for index in part.nodes),
                )
                for number, part in enumerate(self.partitions)
            ],
        )
        for line in (*self._loop_lines(), *self._composite_lines()):
            yield notebook.paragraph(line)
        if self.split:
            yield notebook.paragraph(_split_line(self.split))
        lines = [*map(_rejected_line, _alike(self.rejected)), *self.left_lines()]
        lines += [*self._cpu_lines(), *self.notes]
        yield notebook.table(("on the CPU",), [(line.strip(),) for line in lines])
        replaced = [line for part in self.partitions for line in part.replaced]
        yield notebook.folded("kernels that failed and were replaced", notebook.listed(replaced))
        advice = notebook.listed(each.text for each in self.advice)
        yield notebook.folded("advice", advice)

    def __str__(self) -> str:
        """Return the report as a table."""
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the report as a table, with lines wrapped at `width` characters."""
        lines = [f"litegpu on {self.device} ({self.backend}, {self.precision})", *self._lines()]
        for number, each in enumerate(self.subgraphs, start=1):
            lines += ["", _subgraph(number)]
            lines += each._lines()
        return "\n".join(_fitting(line, width) if width else line for line in lines)

    def _lines(self) -> list[str]:
        """Return the table of one graph."""
        lines = [self.summary()]
        if self.partitions:
            lines.append("")
            lines.append("partition  nodes  kernels  memory (lower bound)    weights   ops")
        for number, part in enumerate(self.partitions):
            memory = f"{shown_size(part.arena_bytes)} ({shown_size(part.lower_bound_bytes)})"
            ops = shown_ops(self.ops[index] for index in part.nodes)
            lines.append(
                f"{number:9}  {len(part.nodes):5}  {part.kernels:7}  {memory:22}  "
                f"{shown_size(part.constant_bytes):8}  {ops}"
            )
        lines += [*self._loop_lines(), *self._composite_lines()]
        wide = [name for part in self.partitions for name in part.kept_float32]
        if wide:
            lines += ["", f"float32 after overflow of float16: {shown_names(wide)}"]
        replaced = [line for part in self.partitions for line in part.replaced]
        if replaced:
            lines += ["", "kernels that failed here and were replaced"]
            lines += [f"  {line}" for line in dict.fromkeys(replaced)]
        if self.split:
            lines += ["", _split_line(self.split)]
        if self.rejected or self.left_out or any(self._cpu_lines()):
            lines += ["", "on the CPU"]
        lines += [_rejected_line(nodes) for nodes in _alike(self.rejected)]
        lines += [f"  {line}" for line in (*self.left_lines(), *self._cpu_lines(), *self.notes)]
        return [printable(part, _LONGEST) for line in lines for part in line.split("\n")]

    def _loop_lines(self) -> Iterator[str]:
        """Yield a line for each loop whose number of iterations depends on data."""
        for number, part in enumerate(self.partitions):
            if part.loop_passes:
                yield (
                    f"partition {number} is a loop whose condition the GPU computes; the host "
                    f"reads the condition after every {counted(part.loop_passes, 'iteration')}"
                )

    def _composite_lines(self) -> Iterator[str]:
        """Yield a line for each composite name, with the number of its nodes that the GPU runs."""
        delegated = {*self.delegated_nodes}
        for each in self.composites:
            gpu = len(delegated.intersection(each.nodes))
            yield (
                f"{each.name}: {counted(len(each.nodes), 'composite')} with "
                f"{counted(each.inner_nodes, 'node')} in all, {gpu} on the GPU"
            )

    def _cpu_lines(self) -> Iterator[str]:
        """Yield a line for each partition that the CPU runs for the current shapes, and why."""
        for number, part in enumerate(self.partitions):
            if part.on_cpu:
                yield f"partition {number}, for the present shapes: {part.on_cpu}"

    def left_lines(self) -> Iterator[str]:
        """Yield a line for each reason why nodes that the GPU could run stay on the CPU."""
        groups: dict[str, list[LeftOut]] = {}
        for left in self.left_out:
            groups.setdefault(left.reason, []).append(left)
        for reason, parts in groups.items():
            nodes = sorted(index for part in parts for index in part.nodes)
            several = f"{len(parts)} parts: " if len(parts) > 1 else ""
            ops = shown_ops(self.ops[index] for index in nodes)
            yield f"{ops} ({several}{shown_nodes(nodes)}): {reason}"


def _fitting(line: str, width: int) -> str:
    """Wrap a line at the width; in a table row, move the list of ops below the row."""
    if len(line) <= width:
        return line
    row, _, ops = line.rpartition("  ")
    if row.strip()[:1].isdigit():
        return f"{row.rstrip()}\n{wrapped(_OPS_INDENT + ops, width, _OPS_INDENT)}"
    return wrapped(line, width, " " * (len(line) - len(line.lstrip()) + 2))


_LONGEST = 4000
"""Maximum characters of a line."""
_OPS_INDENT = " " * len("partition  ")


def _subgraph(number: int) -> str:
    return f"subgraph {number} (another signature, or the body of an IF or WHILE)"


def _split_line(split: Split) -> str:
    return (
        f"the split: {counted(split.round_trips, 'round trip')} and "
        f"{shown_size(split.copied_bytes)} copied between CPU and GPU, {about(split.seconds)} per "
        "invoke on a GPU"
    )


def _rejected_line(nodes: Sequence[RejectedNode]) -> str:
    """Describe nodes with the same reason, which may name a tensor of the first node."""
    first = nodes[0]
    others = len({node.reason for node in nodes}) - 1
    reason = first.reason
    if others:
        reason = _TENSOR.sub(lambda found: f"{found[0]} (and {others} more)", reason, count=1)
    where = shown_nodes([node.index for node in nodes])
    return f"  {first.op} v{first.version} ({where}): {reason}"


_TENSOR = re.compile(r"tensor \d+")


def without_tensors(reason: str) -> str:
    """Return a reason without the tensor numbers in it."""
    return _TENSOR.sub("tensor", reason)


def _alike(rejected: Sequence[RejectedNode]) -> list[list[RejectedNode]]:
    """Group nodes whose reasons differ only in tensor numbers."""
    groups: dict[tuple[str, int, str], list[RejectedNode]] = {}
    for node in rejected:
        key = (node.op, node.version, without_tensors(node.reason))
        groups.setdefault(key, []).append(node)
    return list(groups.values())
