"""`litegpu run MODEL`: runs a model on GPU and CPU: result, latency, agreement."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from litegpu import DelegationReport, GpuDelegate
from litegpu.errors import ModelError
from litegpu.runtime_abi.interpreter import (
    Output,
    default_threads,
    interpreter,
    outputs,
    set_inputs,
)
from litegpu.tools.console import note, print_table
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate, print_report, with_delegate
from litegpu.tools.drawing.finding import Finding
from litegpu.tools.drawing.saving import check_output, save_picture
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.flags import Flag, positive, positive_int
from litegpu.tools.labels import find_labels, read_labels
from litegpu.tools.measure import Agreement, Comparison, Latency, compare, time_invokes
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.picture_flag import (
    picture_of_flag,
)
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.results import (
    best_classes,
    class_count,
    print_meaning,
    print_summary,
    print_top,
    summary,
)
from litegpu.tools.run import many as run_many
from litegpu.tools.run.page import run_page
from litegpu.tools.signatures import SIGNATURE, graph_report, of_signature
from litegpu.tools.viewer import PICTURE_FLAGS, VIEW_FLAGS, Viewer, make_inputs

if TYPE_CHECKING:
    from PIL import Image

ARGUMENTS = {"model": "a model file, a known name, or zoo:NAME"}
MEASURE_FLAGS = (
    Flag("num_runs", positive_int, 50, "number of timed runs of the delegate and of the CPU"),
    Flag(
        "max_secs", positive, 10.0, "maximum seconds of the delegate's timed runs, and of the CPU's"
    ),
    Flag("num_threads", positive_int, default_threads(), "CPU threads"),
)
FLAGS = (
    Flag(
        *("image", str, None),
        "a picture (- is stdin), a folder of pictures, or a video; without --image, seeded noise",
        metavar="PATH",
    ),
    Flag(
        *("output", str, None),
        "draw the result into a .png, .jpg or .webp; into a folder if --image is a folder; or "
        "into a video",
        metavar="PATH",
    ),
    SIGNATURE,
    *PICTURE_FLAGS,
    *VIEW_FLAGS,
    Flag("strict", bool, False, "stop at the first image that cannot be read"),
    *DELEGATE_FLAGS,
    *MEASURE_FLAGS,
    JSON,
    REPORT,
)
EXAMPLES = (
    "litegpu run mobilenet_v2_1.0_224 --image=picture.jpg",
    "litegpu run model.tflite --image=picture.png --labels=labels.txt",
    "litegpu run detector.tflite --image=street.jpg --output=boxes.png",
    "litegpu run model.tflite --image=face.jpg --output=out.png --task=landmarks",
    "litegpu run detector.tflite --image=pictures --output=drawn --json=found.json",
    "litegpu run detector.tflite --image=street.mp4 --output=boxes.mp4",
    "litegpu run model.tflite --backend=gl --precision=fp16",
    "litegpu run model.tflite --signature=serving_default",
    "litegpu run model.tflite --num_runs=20 --json=results.json",
    "litegpu run model.tflite --image=picture.jpg --report=report.html",
)
NOTES = (
    "Pictures are turned upright; transparent ones get a white background. An animation's first "
    "frame is used, and the upper 8 of 16 bits per channel. --fit fits the picture to the input's "
    "shape: its center (crop), distorted (stretch) or whole between black bars (letterbox).",
    "By default, the model's task is derived from its outputs, operations and metadata; --task "
    "sets it. The result is printed and drawn into --output: boxes, points, masks, another picture "
    "or the best classes.",
    "Pictures of a folder or a video are processed once each and drawn, without a comparison with "
    "the CPU.",
    "Latencies are compared with those of XNNPACK, the runtime's fastest CPU kernels. Outputs are "
    "compared with those of the runtime's built-in CPU kernels.",
)


def main(args: argparse.Namespace) -> int:
    """Run the model on GPU and CPU, and print the results; return 1 if nothing ran on the GPU."""
    if run_many.takes(args.image):
        return run_many.main(args)
    try_to_write("json", args.json)
    check_output(args)
    prepare_report(args.report)
    picture = picture_of_flag(args.image) if args.image is not None else None
    named = read_labels(args.labels)
    model = find_model(args.model)
    delegate = make_delegate(args)
    note(f"model: {model.source}")
    shown = not prints_json(args)
    viewer = Viewer(model.content, args, named)
    result = compare_sides(model, delegate, picture, args, shown, viewer)
    finding = viewer.read(result.outputs)
    labels = find_labels(named, model.content, class_count(result.outputs))
    if shown:
        print_finding(finding, result.outputs, labels)
        print_meaning(model)
        print_comparison(result, args.num_threads)
    found = {
        "model": model.source,
        "random_weights": model.has_random_weights,
        **_as_dict(result, delegate.report, labels),
    }
    if finding:
        found |= {"task": viewer.to_dict(), "found": finding.to_dict()}
    drawn = finding.draw(picture) if picture and finding else picture
    if drawn and finding and args.output is not None:
        save_picture("output", args.output, drawn)
        note(f"output: {args.output}")
    write_json("json", args.json, found)
    if args.report:
        write_report(args.report, run_page(model, result, delegate.report, labels, drawn, finding))
    return 0 if result.ran_on_gpu else 1


def compare_sides(
    model: FoundModel,
    delegate: GpuDelegate,
    picture: Image.Image | None,
    args: argparse.Namespace,
    shown: bool = True,
    viewer: Viewer | None = None,
) -> Comparison:
    """Run and time the model with and without the delegate, and print the delegation report.

    A viewer determines the model's task, and how the picture is fitted to the input. The reference
    for times is XNNPACK, the runtime's fastest CPU kernels. The reference for outputs is the
    runtime's built-in kernels.
    """
    target = with_delegate(model.content, delegate, args.num_threads)
    on_gpu = of_signature(SIGNATURE.name, args.signature, target)
    report = graph_report(delegate.report, on_gpu)
    if shown:
        print_report(delegate)
    if picture and viewer:
        viewer.begin(on_gpu, picture)
        inputs = viewer.inputs(picture)
    else:
        inputs = make_inputs(on_gpu.get_input_details(), picture, args)
    set_inputs(on_gpu, inputs)
    delegate.wait_for_best_code()  # from here on, the timed interpreter runs
    gpu = time_invokes(on_gpu, args.num_runs, args.max_secs, "GPU")
    got = outputs(on_gpu)
    try:
        cpu = _cpu_latency(model.content, inputs, args)
        tested = _with_builtin_kernels(model.content, inputs, report, args, got)
        agreement = _agreement(model.content, inputs, tested, args)
    except ModelError as error:
        note(f"No comparison with the CPU: {error}")
        return Comparison(got, report, gpu, None, [])
    return Comparison(got, report, gpu, cpu, agreement)


def print_result(results: list[Output], labels: list[str]) -> None:
    """Print the top classes of a classifier, or a summary of the outputs of any other model."""
    if class_count(results):
        print_top(results[0], labels)
    else:
        print_summary(results)


def print_finding(finding: Finding | None, results: list[Output], labels: list[str]) -> None:
    """Print a model's result for a picture, or a summary of the outputs if the task is unknown."""
    if finding is None:
        print_result(results, labels)
        return
    headings, rows = finding.table()
    print_table(headings, rows)


def print_comparison(result: Comparison, threads: int) -> None:
    """Print both latencies, and the difference of each output from the CPU's output."""
    rows = [_latency_row(_side(result.report), result.gpu)]
    if result.cpu:
        rows.append(_latency_row(f"CPU (XNNPACK, threads: {threads})", result.cpu))
    print_table(("latency", ">median ms", ">min ms", ">max ms", ">runs"), rows)
    if result.agreement:
        print_table(
            ("agreement with the CPU", ">relative L2", ">max |difference|", "same top-1"),
            [
                (item.name, f"{item.relative_l2:.2e}", f"{item.max_abs:.2e}", _top1(item))
                for item in result.agreement
            ],
        )


def _top1(item: Agreement) -> str:
    return "no: NaN" if item.has_nan else "yes" if item.top1_equal else "no"


def _as_dict(
    result: Comparison, report: DelegationReport | None, labels: list[str]
) -> dict[str, Any]:
    classes = best_classes(result.outputs[0]) if class_count(result.outputs) else []
    return {
        "report": report.to_dict() if report else None,
        "outputs": [summary(output) for output in result.outputs],
        "top": [
            {"class": each, "score": score, "name": labels[each] if labels else ""}
            for each, score in classes
        ],
        "latency": {
            "delegate": result.gpu.to_dict(),
            "cpu": result.cpu.to_dict() if result.cpu else None,
        },
        "agreement": [asdict(item) for item in result.agreement],
    }


def _side(report: DelegationReport | None) -> str:
    if not report or not report.delegated_nodes:
        return "delegate (nothing on the GPU)"
    return f"delegate ({report.backend} {report.precision})"


def _latency_row(name: str, latency: Latency) -> tuple[str, ...]:
    times = (latency.median_ms, latency.min_ms, latency.max_ms)
    return (name, *(f"{time:.3f}" for time in times), str(latency.runs))


def _cpu_latency(model: bytes, inputs: list[NDArray[Any]], args: argparse.Namespace) -> Latency:
    target = interpreter(model, threads=args.num_threads)
    on_cpu = of_signature(SIGNATURE.name, args.signature, target)
    set_inputs(on_cpu, inputs)
    return time_invokes(on_cpu, args.num_runs, args.max_secs, "CPU")


def _with_builtin_kernels(
    model: bytes,
    inputs: list[NDArray[Any]],
    report: DelegationReport | None,
    args: argparse.Namespace,
    got: list[Output],
) -> list[Output]:
    """Return the outputs of a run that uses the built-in kernels for CPU nodes.

    In the timed interpreter, XNNPACK runs these nodes, with additional rounding errors.
    """
    if report and report.whole_graph:
        return got
    target = with_delegate(model, make_delegate(args), args.num_threads, builtin_kernels=True)
    again = of_signature(SIGNATURE.name, args.signature, target)
    set_inputs(again, inputs)
    again.invoke()
    return outputs(again)


def _agreement(
    model: bytes, inputs: list[NDArray[Any]], tested: list[Output], args: argparse.Namespace
) -> list[Agreement]:
    target = interpreter(model, threads=args.num_threads, builtin_kernels=True)
    reference = of_signature(SIGNATURE.name, args.signature, target)
    set_inputs(reference, inputs)
    reference.invoke()
    return [compare(*pair) for pair in zip(tested, outputs(reference), strict=True)]
