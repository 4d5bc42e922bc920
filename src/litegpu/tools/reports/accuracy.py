"""Report sections about accuracy: errors by output and node, metric curves, worst pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from litegpu.tools.inference_diff.differences import Comparison
from litegpu.tools.inference_diff.per_node import Finding
from litegpu.tools.inference_diff.per_node_text import verdict
from litegpu.tools.reports.charts import bars, lines
from litegpu.tools.reports.sections import Chart, Gallery, Picture, Section, Table, Text
from litegpu.tools.reports.words import shape_text, short
from litegpu.wording import shown_nodes

_LEAST = 1e-9
"""Position of an error of 0 on a logarithmic axis."""


def comparison_sections(found: Comparison) -> Iterator[Section]:
    """Yield sections with the differences between the outputs of two sides."""
    yield Table(
        "Outputs",
        (
            *(">output", "name", ">avg error", ">std dev", ">max error", "at"),
            *("first beyond the tolerance", ">is", ">should be"),
        ),
        [
            (
                *(str(index), short(each.name, 80), f"{each.avg_error:.4g}"),
                *(f"{each.std_deviation:.4g}", f"{each.max_error:.4g}"),
                f"{list(each.max_error_index)} in run {each.max_error_run}",
                *(
                    ("", "", "")
                    if each.first_bad is None
                    else (
                        f"{list(each.first_bad.index)} in run {each.first_bad.run}",
                        f"{each.first_bad.test:.6g}",
                        f"{each.first_bad.reference:.6g}",
                    )
                ),
            )
            for index, each in enumerate(found.outputs)
        ],
    )
    yield bars(
        "Largest error by output",
        [f"{index}: {short(each.name, 60)}" for index, each in enumerate(found.outputs)],
        _drawable([each.max_error for each in found.outputs]),
        "largest |difference|",
        hints=[f"{each.name}: {each.max_error:.4g}" for each in found.outputs],
        colours=["--gpu0" if each.passed else "--hot" for each in found.outputs],
        log=True,
    )


def _drawable(errors: Sequence[float]) -> list[float]:
    """Return errors for a logarithmic axis; infinite errors are placed beyond all others."""
    most = max((error for error in errors if math.isfinite(error)), default=0.0)
    beyond = 10 * max(most, 1.0)
    return [max(error, _LEAST) if math.isfinite(error) else beyond for error in errors]


def node_error_section(errors: Mapping[int, float], ops: Mapping[int, str], limit: float) -> Chart:
    """Return a chart with the error of each node's result, in node order.

    Args:
        errors: the error of each node, relative to the largest magnitude on the CPU.
        ops: names of the nodes' operations.
        limit: the tolerance.
    """
    nodes = sorted(errors)
    values = _drawable([errors[node] for node in nodes])
    series = {"error": [(float(node), value) for node, value in zip(nodes, values, strict=True)]}
    worst = max(errors, key=lambda node: errors[node], default=None)
    note = "" if worst is None else f"The largest is that of node {worst}, {ops.get(worst, '')}: "
    note += "" if worst is None else f"{errors[worst]:.3g}. "
    return lines(
        *("Error by node", series, "node", "part of the largest magnitude"),
        log=True,
        points=len(errors) < 100,
        limit=limit,
        note=f"{note}Each part of the graph gets the CPU's values; errors accumulate within it. "
        f"The dashed line is the tolerance, {limit:g}.",
    )


def finding_sections(found: Finding, tolerance: float) -> Iterator[Section]:
    """Yield sections about the first wrong node, its tensors, its kernels, and remedies."""
    yield Text("The wrong node", [verdict(found, tolerance)])
    yield Table(
        "Tensors there",
        (
            *("tensor", "role", "shape", "type", ">min", ">max", ">float16 step"),
            *(">tested min", ">tested max", ">max error", "at"),
        ),
        [
            (
                *(short(each.name, 80), each.role, shape_text(each.shape), each.type),
                *map(_number, (each.low, each.high, each.float16_step)),
                *map(_number, (each.test_low, each.test_high, each.difference)),
                "" if each.index is None else str(list(each.index)),
            )
            for each in found.tensors
        ],
    )
    if found.kernels:
        yield Table(
            "Kernels there",
            ("kernel", "template", "nodes"),
            [(each.name, each.template, shown_nodes(each.nodes)) for each in found.kernels],
        )
    if found.trials:
        yield Table(
            "What to try",
            ("what to try", ">error of the outputs", "helps"),
            [
                (each.flag, _number(each.error), each.failure or ("yes" if each.helps else "no"))
                for each in found.trials
            ],
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


# Evaluations


def curve(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    x_title: str,
    y_title: str,
    note: str = "",
) -> Chart:
    """Return a chart of a metric, such as top-k accuracy over k, or AP over the IoU threshold."""
    return lines(title, series, x_title, y_title, note=note, points=True)


def gallery(title: str, pictures: Sequence[Picture], note: str = "") -> Gallery:
    """Return a row of images, such as the worst examples, each with a caption."""
    return Gallery(title, pictures, note)
