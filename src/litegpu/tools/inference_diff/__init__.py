"""`litegpu inference_diff MODEL`: compares the delegate with the CPU on Gaussian data."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from litegpu import DelegationReport
from litegpu.errors import ModelError
from litegpu.files.wire import message, repeated
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.tools.console import progress
from litegpu.tools.evaluation import (
    DELEGATE,
    METRICS_FILE,
    THREADS,
    failing_task,
    print_placement,
    task_delegates,
)
from litegpu.tools.evaluation import FAILED as TASK_FAILED
from litegpu.tools.files import JSON, prints_json, try_to_write, write_bytes, write_json
from litegpu.tools.flags import Flag, positive_int
from litegpu.tools.inference_diff.differences import (
    Comparison,
    GaussianInputs,
    OutputDiff,
    compare_runs,
)
from litegpu.tools.inference_diff.per_node import Finding, PerNode
from litegpu.tools.inference_diff.per_node_text import print_finding
from litegpu.tools.inference_diff.tolerance import CRITERIA, Tolerance, parse_tolerance
from litegpu.tools.lines import error, info
from litegpu.tools.model_explorer import EXPORT, export_errors, needs_nodes, prepare_export
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.registrar import REGISTRAR_FLAGS
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page, Section

ARGUMENTS = {"model": "a model file (also --model_file=FILE), a known name, or zoo:NAME"}
FLAGS = (
    DELEGATE,
    Flag("num_runs", positive_int, 50, "number of random inputs"),
    THREADS,
    METRICS_FILE,
    Flag("reference", str, "", "run this model on the CPU instead of MODEL", metavar="MODEL"),
    Flag(
        *("tolerance", parse_tolerance, None),
        "maximum error relative to an output's largest magnitude (default: 0.001, or 0.02 if the "
        f"GPU computes in half precision), or criteria as NAME:LIMIT,...: {', '.join(CRITERIA)}; "
        "beyond it the exit status is 1",
        metavar="LIMIT",
    ),
    Flag(
        *("per_node", bool, False),
        "if an error exceeds the tolerance: find the first wrong node and a remedy",
    ),
    *REGISTRAR_FLAGS,
    JSON,
    REPORT,
    EXPORT,
)
EXAMPLES = (
    "litegpu inference_diff --model_file=model.tflite --delegate=gpu",
    "litegpu inference_diff model.tflite --delegate=gpu --num_runs=5 --json",
    "litegpu inference_diff model.tflite --delegate=gpu --per_node",
    "litegpu inference_diff model.tflite --delegate=gpu --per_node --report=a.html",
    "litegpu inference_diff model.tflite --backend=gl --precision=fp16",
    "litegpu inference_diff model.tflite --delegate=gpu --json \\\n"
    "    --tolerance=absolute:0.01,cosine:0.999,top_k:5",
)
NOTES = (
    "The model runs with the delegate and on one CPU thread without XNNPACK, on the same inputs. "
    "Inputs are drawn from a normal distribution over the range of their element type. Errors of "
    "quantized outputs are counted in integer steps.",
    "The GPU computes in float32 unless --precision=fp16. The exit status is 1 if the error of an "
    "output exceeds --tolerance.",
)

FAILED = TASK_FAILED
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2}


@dataclass(frozen=True)
class _Evaluation:
    """The comparison of two sides and, with --per_node, the first wrong node and all errors."""

    comparison: Comparison
    tolerance: Tolerance
    node_tolerance: float
    """The tolerance of a node's error, relative to the largest magnitude of its results."""
    precision: str
    report: DelegationReport | None
    node: Finding | None = None
    errors: Mapping[int, float] = field(default_factory=dict)


def main(args: argparse.Namespace) -> int:
    """Run both sides, and print the differences; return 1 if an output exceeds the tolerance.

    The tool writes the files last.
    """
    lines_to = sys.stderr if prints_json(args) else sys.stdout
    with contextlib.redirect_stdout(lines_to), failing_task(args):
        needs_nodes(args.export, args.per_node)
        try_to_write("output_file_path", args.output_file_path or None)
        try_to_write("json", args.json)
        prepare_export(args.export)
        prepare_report(args.report)
        model = find_model(args.model)
        evaluation = _evaluate(args, model)
    found, node = evaluation.comparison, evaluation.node
    if args.output_file_path:
        write_bytes("output_file_path", args.output_file_path, metrics(found))
    beyond = beyond_lines(found, evaluation.tolerance)
    content = {
        "model": model.source,
        **_setting(evaluation),
        "passed": not beyond,
        **asdict(found),
    }
    if args.per_node:
        content["per_node"] = asdict(node) if node else None
    write_json("json", args.json, content)
    export_errors(args.export, model.content, evaluation.report, evaluation.errors)
    if args.report:
        write_report(args.report, _page(model, evaluation))
    for line in beyond:
        error(line)
    return 1 if beyond else 0


def _setting(found: _Evaluation) -> dict[str, Any]:
    """Return lines about where each side ran, and about the tolerance."""
    report = found.report
    return {
        "device": report.device if report else None,
        "backend": report.backend if report else None,
        "precision": found.precision,
        "tolerance": found.tolerance.limits,
    }


def _page(model: FoundModel, found: _Evaluation) -> Page:
    # It imports the modules of this package.
    from litegpu.tools.reports.accuracy import (
        comparison_sections,
        finding_sections,
        node_error_section,
    )

    sections: list[Section] = [overview(_headline(found)), *comparison_sections(found.comparison)]
    ops = dict(found.report.ops) if found.report else {}
    if found.node:
        sections += finding_sections(found.node, found.node_tolerance)
    if found.errors:
        sections.append(node_error_section(found.errors, ops, found.node_tolerance))
    marked = found.node.nodes if found.node else ()
    sections += delegation_sections(model.content, found.report, errors=found.errors, marked=marked)
    return Page("inference_diff", model.name, _verdict(found), sections)


def _verdict(found: _Evaluation) -> str:
    """Return a sentence about whether the two sides agree."""
    outputs = found.comparison.outputs
    bad = sum(not each.passed for each in outputs)
    limit = found.tolerance.text()
    if found.tolerance.limits.keys() == {"relative"}:
        limit += " of their magnitude"
    if not bad:
        return f"All outputs agree with the CPU's, within {limit}."
    return f"{bad} of {len(outputs)} outputs differ from the CPU's by more than {limit}."


def _headline(found: _Evaluation) -> list[tuple[str, str]]:
    compared = found.comparison
    return [
        *device_facts(found.report),
        ("runs", str(compared.num_runs)),
        ("tolerance", found.tolerance.text()),
        ("latency of the CPU, 1 thread", f"{compared.reference.avg_us / 1e3:.3f} ms"),
        ("latency of the test", f"{compared.test.avg_us / 1e3:.3f} ms"),
    ]


def _evaluate(args: argparse.Namespace, model: FoundModel) -> _Evaluation:
    """Compare the two sides, and search for the first wrong node if requested."""
    reference = find_model(args.reference) if args.reference else model
    delegates = task_delegates(args, model.content)
    test = delegates.interpreter(model.content)
    print_placement(delegates)
    against = interpreter(reference.content, threads=1, builtin_kernels=True)
    _check_alike(model, reference, test, against)
    precision = delegates.gpu.precision if delegates.gpu else "fp32"
    tolerance = args.tolerance or Tolerance(relative=TOLERANCES[precision])
    limit = tolerance.relative or TOLERANCES[precision]
    inputs = GaussianInputs(test.get_input_details())
    found = compare_runs(
        test, against, inputs, args.num_runs, tolerance, lambda runs: progress(runs, "runs")
    )
    for line in comparison_lines(found, tolerance):
        info(line)
    report = delegates.gpu.report if delegates.gpu else None
    result = _Evaluation(found, tolerance, limit, precision, report)
    if not args.per_node:
        return result
    runs = (output.first_run_beyond for output in found.outputs)
    bad_runs = [run for run in runs if run is not None]
    if not bad_runs:
        info("All outputs are within the tolerance, so there is no wrong node to find.")
    shown = args.report is not None or args.export is not None
    if not bad_runs and not shown:
        return result
    inputs = GaussianInputs(test.get_input_details())
    *_, values = (inputs.draw() for _ in range(min(bad_runs, default=0) + 1))
    per_node = PerNode(model.content, reference.content, delegates, values)
    node = None
    if bad_runs:
        node = per_node.find(limit)
        print_finding(node, limit)
    return replace(result, node=node, errors=per_node.errors() if shown else {})


def _check_alike(model: FoundModel, reference: FoundModel, test: Any, against: Any) -> None:
    """Raise ModelError for two models with different inputs or outputs."""
    for what in ("input", "output"):
        sides = [_kinds(getattr(each, f"get_{what}_details")()) for each in (test, against)]
        if sides[0] != sides[1]:
            raise ModelError(
                f"The {what}s of {model.source} are {', '.join(sides[0])}, those of "
                f"{reference.source} are {', '.join(sides[1])}. "
                "Give --reference a model with the same inputs and outputs."
            )


def _kinds(details: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{np.dtype(each['dtype']).name}{each['shape'].tolist()}" for each in details]


def comparison_lines(found: Comparison, tolerance: Tolerance) -> list[str]:
    """Return the result lines, with the largest error below the line of each output."""
    lines = [
        f"Num evaluation runs: {found.num_runs}",
        f"Reference run latency: {found.reference.text()}",
        f"Test run latency: {found.test.text()}",
    ]
    for index, each in enumerate(found.outputs):
        lines.append(
            f"OutputDiff[{index}]: avg_error={each.avg_error:g}, std_dev={each.std_deviation:g}"
        )
        lines.append(f"OutputMax[{index}]: {_worst(each, tolerance)}")
        lines += [
            f"OutputTolerance[{index}]: {one.criterion}={one.worst:g} in run {one.worst_run}, "
            f"limit {one.limit:g}"
            for one in each.criteria
            if CRITERIA[one.criterion].beyond
        ]
    return lines


def beyond_lines(found: Comparison, tolerance: Tolerance) -> list[str]:
    """Return lines about outputs beyond the tolerance: first bad element, other criteria."""
    lines = []
    for index, each in enumerate(found.outputs):
        name = f"Output {index}, '{each.name}',"
        if bad := each.first_bad:
            lines.append(
                f"{name} is beyond the tolerance of {tolerance.elements_text()}: element "
                f"{list(bad.index)} is {bad.test:.9g} instead of {bad.reference:.9g} in run "
                f"{bad.run}."
            )
        for one in each.criteria:
            text = CRITERIA[one.criterion].beyond
            if text and not one.passed:
                said = text.format(value=one.worst, limit=one.limit)
                lines.append(f"{name} {said}, in run {one.worst_run}.")
    return lines


def _worst(found: OutputDiff, tolerance: Tolerance) -> str:
    largest = f"max_error={found.max_error:g} at {list(found.max_error_index)}"
    bad = found.first_bad
    if bad is None:
        elements = tolerance.elements_text()
        return largest + f", no index beyond the tolerance of {tolerance.text()}" * bool(elements)
    return (
        f"{largest}, first_bad_index={list(bad.index)} in run {bad.run} "
        f"({bad.test:.9g} instead of {bad.reference:.9g})"
    )


def metrics(found: Comparison) -> bytes:
    """Return the result as TensorFlow Lite's EvaluationStageMetrics, serialized."""
    errors = (
        message(
            (1, np.float32(each.largest_mean_error)),
            (2, np.float32(each.min_error)),
            (3, each.avg_error),
            (4, np.float32(each.std_deviation)),
        )
        for each in found.outputs
    )
    profiler = message(
        (1, found.reference.message()),
        (2, found.test.message()),
        *repeated(3, errors),
    )
    return message((1, found.num_runs), (2, message((5, profiler))))
