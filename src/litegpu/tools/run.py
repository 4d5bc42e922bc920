"""`litegpu run MODEL`: one picture through the GPU and the CPU: result, latency, agreement."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from litegpu import DelegationReport, GpuDelegate
from litegpu.errors import ModelError, OptionsError
from litegpu.tools.console import note, print_table
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate, print_report, with_delegate
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.flags import Flag, divisor, number, positive, positive_int
from litegpu.tools.images import is_image_input, open_picture, random_tensor, to_tensor
from litegpu.tools.labels import find_labels, read_labels
from litegpu.tools.measure import Agreement, Latency, compare, time_invokes
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.results import best_classes, class_count, print_summary, print_top, summary
from litegpu.tools.runtime import Output, default_threads, interpreter, outputs, set_inputs

if TYPE_CHECKING:
    from PIL import Image

ARGUMENTS = {"model": "a .tflite file, a known name, or zoo:NAME"}
MEASURE_FLAGS = (
    Flag("num_runs", positive_int, 50, "how often each side is timed"),
    Flag("max_secs", positive, 10.0, "stop timing a side after this many seconds"),
    Flag("num_threads", positive_int, default_threads(), "CPU threads"),
)
PICTURE_FLAGS = (
    Flag("labels", str, None, "text file with the name of one class a line"),
    Flag("input_mean", number, 127.5, "float inputs get (pixel - input_mean) / input_std"),
    Flag("input_std", divisor, 127.5, "see input_mean"),
)
FLAGS = (
    Flag("image", str, None, "the picture to run on; without it, seeded noise", metavar="FILE"),
    *PICTURE_FLAGS,
    *DELEGATE_FLAGS,
    *MEASURE_FLAGS,
    JSON,
)
EXAMPLES = (
    "litegpu run mobilenet_v2_1.0_224 --image=picture.jpg",
    "litegpu run model.tflite --image=picture.png --labels=labels.txt",
    "litegpu run model.tflite --backend=gl --precision=fp16",
    "litegpu run model.tflite --num_runs=20 --json=results.json",
)
NOTES = (
    "A picture is turned upright, laid on white where it is transparent, cropped around its centre "
    "and resized. Of an animation the first frame is taken, of 16 bits a channel the upper 8.",
    "Latencies stand beside those of the runtime's fastest CPU kernels (XNNPACK). The agreement is "
    "with its built-in ones; what the GPU leaves to the CPU they run on both sides.",
)


@dataclass(frozen=True)
class Comparison:
    """One run on the GPU beside the CPU; what the CPU could not do is None or empty."""

    outputs: list[Output]
    gpu: Latency
    cpu: Latency | None
    agreement: list[Agreement]


def main(args: argparse.Namespace) -> int:
    """Run the model once on each side and show everything; 0 unless nothing ran on the GPU."""
    try_to_write("json", args.json)
    picture = open_picture(args.image) if args.image is not None else None
    named = read_labels(args.labels)
    model = find_model(args.model)
    delegate = make_delegate(args)
    note(f"model: {model.source}")
    shown = not prints_json(args)
    result = compare_sides(model, delegate, picture, args, shown)
    labels = find_labels(named, model.content, class_count(result.outputs))
    if shown:
        print_result(result.outputs, labels)
        print_comparison(result, delegate, args.num_threads)
    found = {"model": model.source, **_as_dict(result, delegate.report, labels)}
    write_json("json", args.json, found)
    return 0 if ran_on_gpu(delegate) else 1


def ran_on_gpu(delegate: GpuDelegate) -> bool:
    """Return whether any node runs on the GPU."""
    return bool(delegate.report and delegate.report.delegated_nodes)


def compare_sides(
    model: FoundModel,
    delegate: GpuDelegate,
    picture: Image.Image | None,
    args: argparse.Namespace,
    shown: bool = True,
) -> Comparison:
    """Run and time the model with the delegate and without; print the report on the way.

    The timing is against the runtime's fastest CPU kernels (XNNPACK), the agreement against its
    built-in ones.
    """
    on_gpu = with_delegate(model.content, delegate, args.num_threads)
    if shown:
        print_report(delegate)
    inputs = make_inputs(on_gpu.get_input_details(), picture, args)
    set_inputs(on_gpu, inputs)
    gpu = time_invokes(on_gpu, args.num_runs, args.max_secs, "GPU")
    got = outputs(on_gpu)
    try:
        cpu = _cpu_latency(model.content, inputs, args)
        tested = _with_builtin_kernels(model.content, inputs, delegate, args, got)
        agreement = _agreement(model.content, inputs, tested, args.num_threads)
    except ModelError as error:
        note(f"Nothing to compare with: {error}")
        return Comparison(got, gpu, None, [])
    return Comparison(got, gpu, cpu, agreement)


def make_inputs(
    details: list[dict[str, Any]], picture: Image.Image | None, args: argparse.Namespace
) -> list[NDArray[Any]]:
    """Return a value for each input: the picture for the first that takes one, noise elsewhere."""
    values = [random_tensor(detail) for detail in details]
    if picture:
        takers = [place for place, detail in enumerate(details) if is_image_input(detail)]
        if not takers:
            shapes = ", ".join(str(detail["shape"].tolist()) for detail in details)
            raise OptionsError(
                f"--image={args.image}: no input of this model takes a picture; their shapes are "
                f"{shapes}, a picture needs [N, H, W, 1, 3 or 4]. Run it without --image."
            )
        place = takers[0]
        values[place] = to_tensor(picture, details[place], args.input_mean, args.input_std)
    return values


def print_result(results: list[Output], labels: list[str]) -> None:
    """Print the top classes of a classifier, a summary of any other model."""
    if class_count(results):
        print_top(results[0], labels)
    else:
        print_summary(results)


def print_comparison(result: Comparison, delegate: GpuDelegate, threads: int) -> None:
    """Print both latencies side by side, and the distance of each output from the CPU's."""
    rows = [_latency_row(_side(delegate.report), result.gpu)]
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
            "delegate": asdict(result.gpu),
            "cpu": asdict(result.cpu) if result.cpu else None,
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
    on_cpu = interpreter(model, threads=args.num_threads)
    set_inputs(on_cpu, inputs)
    return time_invokes(on_cpu, args.num_runs, args.max_secs, "CPU")


def _with_builtin_kernels(
    model: bytes,
    inputs: list[NDArray[Any]],
    delegate: GpuDelegate,
    args: argparse.Namespace,
    got: list[Output],
) -> list[Output]:
    """Return the outputs with what the GPU leaves to the CPU run by the built-in kernels.

    XNNPACK, which ran it in the interpreter that was timed, has errors of its own.
    """
    if delegate.report and delegate.report.whole_graph:
        return got
    again = with_delegate(model, make_delegate(args), args.num_threads, builtin_kernels=True)
    set_inputs(again, inputs)
    again.invoke()
    return outputs(again)


def _agreement(
    model: bytes, inputs: list[NDArray[Any]], tested: list[Output], threads: int
) -> list[Agreement]:
    reference = interpreter(model, threads=threads, builtin_kernels=True)
    set_inputs(reference, inputs)
    reference.invoke()
    return [compare(*pair) for pair in zip(tested, outputs(reference), strict=True)]
