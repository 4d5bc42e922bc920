"""`litegpu delegates [MODEL]`: lists this machine's delegates, and recommends one for a model."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from litegpu import GpuDelegate
from litegpu.errors import MissingDependencyError, UnsupportedDeviceError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import note, print_table, print_text
from litegpu.tools.delegation import with_delegate
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.registrar import COREML, HEXAGON, NNAPI, Elsewhere, platform
from litegpu.tools.reports.delegation import delegation_sections
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page, Section, Table
from litegpu.wording import counted, shown_time
from litegpu.zoo import kinds

ARGUMENTS = {
    "model": ("a model file, a known name, or zoo:NAME; without MODEL, only the machine is checked")
}
OPTIONAL = ("model",)
FLAGS = (JSON, REPORT)
EXAMPLES = (
    "litegpu delegates",
    "litegpu delegates model.tflite --report=report.html",
    "litegpu delegates --json",
)
NOTES = (
    "Support of the GPU delegate and XNNPACK for each element type is tested here, with models of "
    "one operation. Support of other delegates is from TensorFlow Lite's guide.",
    "An int8 model counts as integer, because the file does not show whether quantization was a "
    "part of training.",
)

_ELSEWHERE = {
    "NNAPI": (NNAPI, "Android", {kinds.FLOAT32, kinds.DYNAMIC, kinds.INTEGER, kinds.TRAINED}),
    "Hexagon": (HEXAGON, "Android on Snapdragon", {kinds.INTEGER, kinds.TRAINED}),
    "Core ML": (COREML, "iOS, macOS", {kinds.FLOAT32, kinds.FLOAT16}),
}
"""Delegates for other platforms: the platforms, and the model types in TensorFlow's guide."""
_GPU, _XNNPACK = "GPU", "XNNPACK"


@dataclass(frozen=True)
class Entry:
    """A delegate: flag, availability on this machine, and details or the reason."""

    name: str
    flag: str
    platforms: str
    here: bool
    details: str
    takes: tuple[str, ...]
    """The model types that the delegate supports, from `kinds.KINDS`."""


@dataclass(frozen=True)
class Recommendation:
    """The recommended delegate, its flag of the tools, and the reason."""

    name: str
    flag: str
    reason: str


@dataclass(frozen=True)
class Seen:
    """A model, its type from `kinds.KINDS`, and the recommended delegate."""

    source: str
    type: str
    recommended: Recommendation


def main(args: argparse.Namespace) -> int:
    """Print both tables, and the recommendation for a model; the exit status is 0."""
    try_to_write("json", args.json)
    prepare_report(args.report)
    model = find_model(args.model) if args.model else None
    gpu, refusal = _open_gpu()
    entries = [
        _gpu_entry(gpu, refusal),
        _xnnpack_entry(),
        *map(_elsewhere, _ELSEWHERE),
        _external(),
    ]
    found = _inspect_model(model, gpu, refusal) if model else None
    if not prints_json(args):
        _print_tables(entries, found)
    shown = {"delegates": entries, "model": found}
    write_json("json", args.json, {name: _plain(each) for name, each in shown.items()})
    if args.report:
        write_report(args.report, _page(entries, model, gpu, found))
    return 0


def _page(
    entries: list[Entry], model: FoundModel | None, gpu: GpuDelegate | None, found: Seen | None
) -> Page:
    platforms, types = _tables(entries, found)
    sections: list[Section] = [
        Table("Delegates of this machine", *platforms),
        Table("Supported types of models", *types),
    ]
    if model is None or found is None:
        return Page("delegates", "this machine", "", sections)
    advice = found.recommended
    verdict = f"Recommended: {advice.name} ({advice.flag}). {advice.reason}"
    sections += delegation_sections(model.content, gpu.report if gpu else None)
    return Page("delegates", found.source, verdict, sections)


def _plain(item: Any) -> Any:
    if isinstance(item, list):
        return [_plain(each) for each in item]
    return item and dataclasses.asdict(item)


def _inspect_model(model: FoundModel, gpu: GpuDelegate | None, refusal: str) -> Seen:
    note(f"model: {model.source}")
    advice = recommend(model.content, gpu, refusal)
    return Seen(model.source, kinds.kind_of(model.content), advice)


def recommend(model: bytes, gpu: GpuDelegate | None, refusal: str) -> Recommendation:
    """Return the recommended delegate for a model on this machine, from litegpu's estimate.

    Args:
        model: a .tflite file.
        gpu: the GPU delegate, or None.
        refusal: why there is no GPU delegate.

    Raises:
        ModelError: the runtime rejects the model.
    """
    threads = runtime.default_threads()
    if gpu is None:
        runtime.interpreter(model)
        return _cpu(f"There is no usable GPU: {refusal}")
    delegated = with_delegate(model, gpu, threads)
    report = gpu.report
    del delegated
    if report is None or not report.delegated_nodes:
        reasons = [f"{each.op}: {each.reason}" for each in report.rejected] if report else []
        reasons += report.left_lines() if report else []
        return _cpu(" ".join(["The GPU would run no operation of the model.", *reasons[:1]]))
    if gpu.device.software:
        return _cpu(f"{gpu.device.title} is not a GPU but a GPU interface to the CPU.")
    share = f"{len(report.delegated_nodes)} of {report.total_nodes} operations run on it"
    estimates = [part.estimate for part in report.partitions if part.estimate]
    on_cpu = sum(each.cpu_seconds for each in estimates)
    on_gpu = sum(each.gpu_seconds for each in estimates)
    times = (
        f"in about {shown_time(on_gpu)} plus arithmetic, compared with {shown_time(on_cpu)} on "
        f"the CPU ({counted(threads, 'thread')})"
    )
    if estimates and on_cpu <= on_gpu:
        return _cpu(f"{gpu.device.title} is slower if copies are included: {share}, {times}.")
    return Recommendation(_GPU, "--use_gpu=true", f"{share}, {times}. `litegpu run` measures both.")


def _cpu(reason: str) -> Recommendation:
    return Recommendation(f"{_XNNPACK}, on the CPU", "--use_xnnpack=true", reason)


def _open_gpu() -> tuple[GpuDelegate | None, str]:
    """Return the GPU delegate, or None and the reason."""
    try:
        return GpuDelegate(), ""
    except (UnsupportedDeviceError, MissingDependencyError) as error:
        return None, str(error)


def _gpu_entry(gpu: GpuDelegate | None, refusal: str) -> Entry:
    takes = [kind for kind in kinds.KINDS if gpu and _gpu_takes(gpu, kinds.sample(kind))]
    details = f"{gpu.device.title}{' (software)' * gpu.device.software}" if gpu else refusal
    platforms = "Linux, macOS, Windows"
    return Entry(_GPU, "--use_gpu=true", platforms, gpu is not None, details, tuple(takes))


def _gpu_takes(gpu: GpuDelegate, model: bytes) -> bool:
    delegated = with_delegate(model, gpu, builtin_kernels=True)
    report = gpu.report
    del delegated
    # A sample is so small that it may be left to the CPU although the GPU can run it.
    return report is not None and not report.rejected and gpu.error is None


def _xnnpack_entry() -> Entry:
    takes = tuple(kind for kind in kinds.KINDS if _xnnpack_takes(kinds.sample(kind)))
    details = "part of the runtime" if takes else "this runtime was built without it"
    return Entry(_XNNPACK, "--use_xnnpack=true", "all", bool(takes), details, takes)


def _xnnpack_takes(model: bytes) -> bool:
    """Whether the execution plan contains a node of XNNPACK, the runtime's own delegate."""
    plan = runtime.interpreter(model)._get_ops_details()
    return any("DELEGATE" in each["op_name"].upper() for each in plan)


def _elsewhere(name: str) -> Entry:
    delegate, platforms, takes = _ELSEWHERE[name]
    here = platform() in delegate.platforms
    flag = f"--{delegate.flag}=true"
    return Entry(name, flag, platforms, here, _library(delegate, here), _in_order(takes))


def _library(delegate: Elsewhere, here: bool) -> str:
    return f"if {delegate.library} is found" if here else f"not on {platform()}"


def _external() -> Entry:
    flag, details = "--external_delegate_path=FILE", "any external library"
    return Entry("external", flag, "all", True, details, ())


def _in_order(takes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(takes, key=kinds.KINDS.index))


def _tables(
    entries: list[Entry], found: Seen | None
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield the headings and rows of both tables: by platform, and by type of model."""
    yield (
        ("delegate", "platforms", "here", "which", "?flag"),
        [(each.name, each.platforms, _yes(each.here), each.details, each.flag) for each in entries],
    )
    typed = [each for each in entries if each.takes or each.name == _GPU]
    rows = [
        (
            f"{kind} (this model)" if found and found.type == kind else kind,
            *(_yes(kind in each.takes) for each in typed),
        )
        for kind in kinds.KINDS
    ]
    yield ("type of model", *(each.name for each in typed)), rows


def _print_tables(entries: list[Entry], found: Seen | None) -> None:
    for columns, rows in _tables(entries, found):
        print_table(columns, rows)
    if found:
        advice = found.recommended
        print()
        print_text(f"recommended: {advice.name} ({advice.flag}). {advice.reason}", "  ")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
