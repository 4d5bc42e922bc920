"""`litegpu profile MODEL`: the time and the lower bound of each kernel, and a trace."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from litegpu import GpuDelegate, KernelProfile, Profile
from litegpu.pictures.images import random_tensor
from litegpu.runtime_abi.interpreter import set_batch, set_inputs
from litegpu.tools.console import note, print_table, print_text
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate, with_delegate
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.flags import Flag, positive_int
from litegpu.tools.model_explorer import EXPORT, export_times, prepare_export
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page
from litegpu.tools.reports.timing import profile_sections
from litegpu.tools.signatures import SIGNATURE, of_signature
from litegpu.wording import counted, shown_time

ARGUMENTS = {"model": "a model file, a known name, or zoo:NAME"}
FLAGS = (
    *DELEGATE_FLAGS,
    SIGNATURE,
    Flag("batch", positive_int, None, "first dimension of every input (default: the model's own)"),
    Flag("repeats", positive_int, 20, "number of measurements; medians are shown"),
    Flag(
        "top",
        positive_int,
        None,
        "print only the N slowest kernels (default: all, in order)",
    ),
    Flag("peaks", bool, True, "measure the device's peak rates, which the lower bounds need"),
    Flag("trace", str, None, "write a trace for ui.perfetto.dev to this file"),
    JSON,
    REPORT,
    EXPORT,
)
EXAMPLES = (
    "litegpu profile model.tflite",
    "litegpu profile model.tflite --top=10",
    "litegpu profile zoo:posenet_mobilenet_v1_257 --batch=4 --trace=trace.json",
    "litegpu profile model.tflite --precision=fp16 --json",
    "litegpu profile zoo:tiny_lm --signature=decode",
    "litegpu profile model.tflite --report=report.html --export=model_explorer.json",
)
NOTES = (
    "Each kernel is measured alone with warm caches: on CUDA as a batch of launches, on other "
    "backends by the device's timestamps. A sequence of kernels takes less than the sum of their "
    "times if the device overlaps kernels, and more if the device pauses between them.",
    "The floor of a kernel is a lower bound of its time: that of its arithmetic or of moving its "
    "bytes once, whichever is longer. The device's rates are measured with small kernels.",
)


def main(args: argparse.Namespace) -> int:
    """Profile the model, print the tables, and write the files last."""
    for flag in ("trace", "json"):
        try_to_write(flag, getattr(args, flag))
    prepare_export(args.export)
    prepare_report(args.report)
    model = find_model(args.model)
    delegate = make_delegate(args)
    running = with_delegate(model.content, delegate)
    target = of_signature(SIGNATURE.name, args.signature, running)
    if args.batch:
        set_batch(target, args.batch)
    set_inputs(target, [random_tensor(detail) for detail in target.get_input_details()])
    note(f"model: {model.source}")
    profile = delegate.profile(
        running, signature=args.signature, repeats=args.repeats, peaks=args.peaks
    )
    if not prints_json(args):
        print_profile(profile, args.top)
    write_json("trace", args.trace, profile.to_trace())
    write_json("json", args.json, {"model": model.source, **profile.to_dict()})
    export_times(args.export, model.content, delegate.report, profile)
    if args.report:
        write_report(args.report, _page(model, delegate, profile))
    return 0


def _page(model: FoundModel, delegate: GpuDelegate, profile: Profile) -> Page:
    report = delegate.report
    return Page(
        *("profile", model.name, report.summary() if report else ""),
        [
            overview([*device_facts(report), *_headline(profile)]),
            *profile_sections(profile),
            *delegation_sections(model.content, report, profile),
        ],
    )


def _headline(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the most important figures for the report page."""
    if profile.invoke_seconds is not None:
        yield "interpreter.invoke()", shown_time(profile.invoke_seconds)
    yield "kernels, each measured alone", shown_time(profile.kernel_seconds)
    if profile.floor_seconds is not None:
        share = _percent(profile.floor_seconds, profile.kernel_seconds)
        yield "their floors", f"{shown_time(profile.floor_seconds)} ({share})"


def print_profile(profile: Profile, top: int | None = None) -> None:
    """Print the kernels of each partition, the parts of the time, and the slowest ops.

    Kernels with equal node and shape, such as the iterations of a loop, are combined to one row.
    With `top`, the function prints only the slowest `top` rows of all partitions.
    """
    print_text(f"litegpu on {profile.device} ({profile.backend}, {profile.precision})")
    if profile.peaks:
        print_text(_limits(profile), "  ")
    total = profile.kernel_seconds
    if top is None:
        for number, part in enumerate(profile.partitions):
            print(f"\npartition {number}")
            _print_kernels(_alike(part.kernels), total)
    else:
        _print_slowest(profile, top)
    print_table(("where the time goes", ">µs"), _summary(profile))
    print_table(
        ("operation", ">kernels", ">µs", ">share", ">efficiency"),
        [
            (op, str(kernels), _us(seconds), _percent(seconds, total), _percent(floor, seconds))
            for op, kernels, seconds, floor in profile.by_op()
        ],
    )


def _limits(profile: Profile) -> str:
    """Return a line about the measured limits of the device."""
    peaks = profile.peaks
    assert peaks is not None
    rates = [f"{peaks.flops / 1e9:.0f} GFLOP/s"]
    if peaks.tensor_flops:
        rates.append(f"{peaks.tensor_flops / 1e9:.0f} GFLOP/s on tensor cores")
    rates += [f"{rate / 1e9:.0f} GB/s over {size >> 20} MiB" for size, rate in peaks.copies]
    return f"measured limits: {', '.join(rates)}"


def _print_slowest(profile: Profile, top: int) -> None:
    rows = [row for part in profile.partitions for row in _alike(part.kernels)]
    slowest = sorted(rows, key=lambda row: -row[0].seconds)[:top]
    share = _percent(sum(row.seconds for row, _ in slowest), profile.kernel_seconds)
    print(f"\nthe slowest {len(slowest)} of {counted(len(rows), 'row')}: {share} of the time")
    _print_kernels(slowest, profile.kernel_seconds)


def _alike(kernels: Iterable[KernelProfile]) -> list[tuple[KernelProfile, int]]:
    """Combine the kernels of a loop's iterations; return each kernel with its number of runs."""
    groups: dict[tuple[object, ...], list[KernelProfile]] = {}
    for number, each in enumerate(kernels):
        own = number if each.node < 0 else -1
        groups.setdefault((each.template, each.op, each.node, each.shape, own), []).append(each)
    return [(_sum(group), len(group)) for group in groups.values()]


def _sum(kernels: Sequence[KernelProfile]) -> KernelProfile:
    floors = [each.floor_seconds for each in kernels]
    return replace(
        kernels[0],
        seconds=sum(each.seconds for each in kernels),
        flops=sum(each.flops for each in kernels),
        nbytes=sum(each.nbytes for each in kernels),
        floor_seconds=None if None in floors else sum(floor or 0.0 for floor in floors),
    )


def _print_kernels(rows: Sequence[tuple[KernelProfile, int]], total: float) -> None:
    several = any(runs > 1 for _, runs in rows)
    print_table(
        (
            *("kernel", "operation", ">node", "?output", *[">runs"] * several, ">µs", ">share"),
            *("?>GFLOP/s", "?>GB/s", "?>floor µs", ">efficiency"),
        ),
        [_kernel_row(kernel, [str(runs)] * several, total) for kernel, runs in rows],
    )


def _kernel_row(kernel: KernelProfile, runs: Sequence[str], total: float) -> tuple[str, ...]:
    return (
        kernel.template,
        kernel.op,
        str(kernel.node) if kernel.node >= 0 else "",
        "×".join(map(str, kernel.shape)),
        *runs,
        _us(kernel.seconds),
        _percent(kernel.seconds, total),
        f"{kernel.flops_per_second / 1e9:.1f}" if kernel.flops else "",
        f"{kernel.bytes_per_second / 1e9:.1f}",
        _us(kernel.floor_seconds),
        _percent(kernel.floor_seconds, kernel.seconds),
    )


def _summary(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the parts of the time of a run; unknown times are omitted."""
    count = sum(len(part.kernels) for part in profile.partitions)
    times = {
        f"{counted(count, 'kernel')}, each measured alone": profile.kernel_seconds,
        "their floors": profile.floor_seconds,
        "all kernels in sequence": profile.chain_seconds,
        "device, with copies": profile.device_seconds,
        **{f"host: {name}": seconds for name, seconds in profile.host_seconds.items()},
        "interpreter.invoke()": profile.invoke_seconds,
        "of it: runtime, Python, nodes on the CPU": profile.outside_seconds,
    }
    return ((name, _us(seconds)) for name, seconds in times.items() if seconds is not None)


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


def _percent(part: float | None, whole: float) -> str:
    return "" if part is None or not whole else f"{part / whole:.0%}"
