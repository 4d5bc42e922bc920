"""Report sections about where nodes run: graph drawing, partitions, reasons, advice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from litegpu import DelegationReport, Profile
from litegpu.tools.reports.drawing import NodeFacts, draw, kernels_of, places_of
from litegpu.tools.reports.model_graph import ModelGraph, read_graphs
from litegpu.tools.reports.sections import Facts, Section, Table, Text
from litegpu.tools.reports.words import percent, shape_text, short, us
from litegpu.wording import shown_ops, shown_size

NodeErrors = Mapping[int, float]


def delegation_sections(
    content: bytes,
    report: DelegationReport | None,
    profile: Profile | None = None,
    errors: NodeErrors | None = None,
    marked: Collection[int] = (),
) -> Iterator[Section]:
    """Yield the sections that show where a model's nodes run.

    Args:
        content: the bytes of the .tflite file.
        report: the delegate's report; None if no delegate was applied.
        profile: the profile, if times were measured.
        errors: the error of each node of the main graph, relative to the largest magnitude on the
            CPU, if measured.
        marked: nodes of the main graph to highlight.

    Raises:
        MissingDependencyError: a package for reading models or laying out graphs is not installed.
    """
    graphs = read_graphs(content)
    reports = matched(graphs, report)
    for number, (graph, own) in enumerate(zip(graphs, reports, strict=True)):
        main = number == 0
        facts = NodeFacts(
            places_of(own),
            kernels_of(own, profile, number),
            (errors or {}) if main else {},
            frozenset(marked if main else ()),
        )
        name = "" if len(graphs) == 1 else f" {number}: {short(graph.name)}"
        yield draw(graph, facts, f"Graph{name}")
        yield _nodes(graph, facts, f"Nodes{name}")
    if report is not None:
        yield from _report_sections(report)


def matched(
    graphs: Sequence[ModelGraph], report: DelegationReport | None
) -> list[DelegationReport | None]:
    """Assign reports to the graphs of a model; return the report of each graph.

    Reports do not name their graph. The reports are in the order of the graphs, and contain every
    node.
    """
    waiting = [] if report is None else [report, *report.subgraphs]
    found: list[DelegationReport | None] = []
    for graph in graphs:
        ops = {node.index: node.op for node in graph.nodes}
        fits = bool(waiting) and (not found or dict(waiting[0].ops) == ops)
        found.append(waiting.pop(0) if fits else None)
    return found


def device_facts(report: DelegationReport | None) -> list[tuple[str, str]]:
    """Return the first facts of a page: device, precision, nodes on GPU and CPU, memory."""
    if report is None:
        return [("runs on", "the CPU alone")]
    on_gpu = len(report.delegated_nodes)
    memory = sum(part.arena_bytes for part in report.partitions)
    weights = sum(part.constant_bytes for part in report.partitions)
    return [
        ("device", report.device),
        ("backend, precision", f"{report.backend}, {report.precision}"),
        ("nodes on the GPU", f"{on_gpu} of {report.total_nodes}"),
        ("partitions", str(len(report.partitions))),
        ("kernels", str(sum(part.kernels for part in report.partitions))),
        ("GPU memory", f"{shown_size(memory)} + {shown_size(weights)} weights"),
    ]


def _report_sections(report: DelegationReport) -> Iterator[Section]:
    if report.partitions:
        yield Table(
            "Partitions",
            (">partition", ">nodes", ">kernels", ">memory", ">its bound", ">weights", "operations"),
            [
                (
                    *(str(number), str(len(part.nodes)), str(part.kernels)),
                    *map(
                        shown_size, (part.arena_bytes, part.lower_bound_bytes, part.constant_bytes)
                    ),
                    shown_ops(report.ops[node] for node in part.nodes),
                )
                for number, part in enumerate(report.partitions)
            ],
            "No memory plan can use less than its lower bound.",
        )
    advice = [each.text for one in (report, *report.subgraphs) for each in one.advice]
    if advice:
        yield Text("Advice", advice, listed=True)
    if report.notes:
        yield Text("Errors", report.notes)


def _nodes(graph: ModelGraph, facts: NodeFacts, title: str) -> Table:
    """Return all nodes as a table; columns without values are omitted."""
    timed, compared = bool(facts.kernels), bool(facts.errors)
    rows = []
    for node in graph.nodes:
        own = facts.own(node.index)
        seconds = facts.seconds(node.index)
        floors = [each.floor_seconds for each in own if each.floor_seconds is not None]
        outputs = (graph.tensors[tensor] for tensor in node.outputs)
        error = facts.errors.get(node.index)
        rows.append(
            (
                *(str(node.index), short(node.op, 60)),
                "; ".join(f"{shape_text(each.shape)} {each.type}" for each in outputs),
                *((_time(seconds), _floor(floors, seconds)) if timed else ()),
                *(("" if error is None else f"{error:.3g}",) if compared else ()),
                facts.place(node.index)[1],
            )
        )
    columns = (
        *(">node", "operation", "makes"),
        *((">µs", ">efficiency") if timed else ()),
        *((">error",) if compared else ()),
        "runs",
    )
    return Table(title, columns, rows, folded=True)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else us(seconds)


def _floor(floors: Sequence[float], seconds: float | None) -> str:
    return percent(sum(floors) / seconds) if floors and seconds else ""


def overview(items: Sequence[tuple[str, str]], note: str = "") -> Facts:
    """Return the most important figures of a page."""
    return Facts("", items, note)
