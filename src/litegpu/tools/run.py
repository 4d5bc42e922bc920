"""`litegpu run MODEL`: one picture through the GPU and the CPU: result, latency, agreement."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from litegpu import DelegationReport, GpuDelegate
from litegpu.errors import ModelError, OptionsError
from litegpu.tools.console import note, print_table
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate, print_report, with_delegate
from litegpu.tools.flags import Flag, positive_int
from litegpu.tools.images import is_image_input, open_picture, random_tensor, to_tensor
from litegpu.tools.labels import find_labels
from litegpu.tools.measure import Agreement, Latency, compare, time_invokes
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.results import class_count, print_summary, print_top
from litegpu.tools.runtime import Output, default_threads, interpreter, outputs, set_inputs

ARGUMENTS = {"model": "a .tflite file, a known name, or zoo:NAME"}
MEASURE_FLAGS = (
    Flag("num_runs", positive_int, 50, "how often each side is timed"),
    Flag("max_secs", float, 10.0, "stop timing a side after this many seconds"),
    Flag("num_threads", positive_int, default_threads(), "CPU threads"),
)
FLAGS = (
    Flag("image", str, None, "the picture to run on; without it, seeded noise"),
    Flag("labels", str, None, "text file with the name of one class a line"),
    Flag("input_mean", float, 127.5, "float inputs get (pixel - input_mean) / input_std"),
    Flag("input_std", float, 127.5, "see input_mean"),
    *DELEGATE_FLAGS,
    *MEASURE_FLAGS,
)
EXAMPLES = (
    "litegpu run mobilenet_v2_1.0_224 --image=picture.jpg",
    "litegpu run model.tflite --image=picture.png --labels=labels.txt --precision=fp16",
)


@dataclass(frozen=True)
class Comparison:
    """One run on the GPU beside the CPU; what the CPU could not do is None or empty."""

    outputs: list[Output]
    gpu: Latency
    cpu: Latency | None
    agreement: list[Agreement]


def main(args: argparse.Namespace) -> int:
    """Run the model once on each side and print everything; 0 unless nothing ran on the GPU."""
    model = find_model(args.model)
    delegate = make_delegate(args)
    note(f"model: {model.source}")
    applied, result = compare_sides(model, delegate, args)
    print_result(result.outputs, model, args.labels)
    print_comparison(result, delegate, args.num_threads)
    return 0 if applied else 1


def compare_sides(
    model: FoundModel, delegate: GpuDelegate, args: argparse.Namespace
) -> tuple[bool, Comparison]:
    """Run and time the model with the delegate and without; print the report on the way.

    The timing is against the runtime's fastest CPU kernels (XNNPACK), the agreement against its
    built-in ones. Returns whether anything ran on the GPU, and the comparison.
    """
    on_gpu = with_delegate(model.content, delegate, args.num_threads)
    applied = print_report(delegate)
    inputs = make_inputs(on_gpu.get_input_details(), args)
    set_inputs(on_gpu, inputs)
    gpu = time_invokes(on_gpu, args.num_runs, args.max_secs, "GPU")
    tested = outputs(on_gpu)
    try:
        cpu = _cpu_latency(model.content, inputs, args)
        agreement = _agreement(model.content, inputs, tested, args.num_threads)
    except ModelError as error:
        note(f"Nothing to compare with: {error}")
        return applied, Comparison(tested, gpu, None, [])
    return applied, Comparison(tested, gpu, cpu, agreement)


def make_inputs(details: list[dict[str, Any]], args: argparse.Namespace) -> list[NDArray[Any]]:
    """Return a value for each input: the picture for the first that takes one, noise elsewhere."""
    values = [random_tensor(detail) for detail in details]
    if args.image:
        picture = open_picture(args.image)
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


def print_result(results: list[Output], model: FoundModel, labels: str | None) -> None:
    """Print the top classes of a classifier, a summary of any other model."""
    classes = class_count(results)
    if classes:
        print_top(results[0], find_labels(labels, model.content, classes))
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
            (
                "agreement with the built-in CPU kernels",
                ">relative L2",
                ">max |difference|",
                "same top-1",
            ),
            [
                (
                    item.name,
                    f"{item.relative_l2:.2e}",
                    f"{item.max_abs:.2e}",
                    "yes" if item.top1_equal else "no",
                )
                for item in result.agreement
            ],
        )


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


def _agreement(
    model: bytes, inputs: list[NDArray[Any]], tested: list[Output], threads: int
) -> list[Agreement]:
    reference = interpreter(model, threads=threads, builtin_kernels=True)
    set_inputs(reference, inputs)
    reference.invoke()
    return [compare(*pair) for pair in zip(tested, outputs(reference), strict=True)]
