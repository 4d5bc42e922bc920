"""The result of a profile: a model's time per kernel and activity, as data and as a trace."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from litegpu.backends.base import Device
from litegpu.delegation import notebook
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.delegation.report import DelegationReport
from litegpu.engine.peaks import Peaks, measure
from litegpu.engine.profile import KernelProfile, PartitionProfile
from litegpu.errors import (
    InterpreterError,
    LitegpuError,
    ModelError,
    OptionsError,
    did_you_mean,
)
from litegpu.runtime_abi.interpreter import invoke
from litegpu.runtime_abi.signature_target import SignatureTarget
from litegpu.wording import counted

__all__ = ["KernelProfile", "OpTotal", "PartitionProfile", "Profile"]


class OpTotal(NamedTuple):
    """The total of all kernels of one op; times are in seconds."""

    op: str
    kernels: int
    seconds: float
    floor_seconds: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of a model's kernels and of its invokes; all times are medians, in seconds."""

    backend: str
    device: str
    precision: str
    repeats: int
    peaks: Peaks | None
    """The measured peak rates of the device, None if not requested."""
    partitions: tuple[PartitionProfile, ...]
    invoke_seconds: float | None
    """The time of a complete run of the graph by the interpreter; None without an interpreter."""
    outside_seconds: float | None
    """The time of an invoke without its partitions: runtime, Python, and nodes on the CPU."""

    @property
    def kernel_seconds(self) -> float:
        """The sum of the times of all kernels, each measured separately."""
        return sum(part.kernel_seconds for part in self.partitions)

    @property
    def floor_seconds(self) -> float | None:
        """The sum of the minimum times of all kernels; None without the device's peak rates."""
        return _total([part.floor_seconds for part in self.partitions])

    @property
    def chain_seconds(self) -> float | None:
        """The time of all kernels in sequence; None if the device cannot measure it."""
        return _total([part.chain_seconds for part in self.partitions])

    @property
    def device_seconds(self) -> float | None:
        """The time of all kernels and of the copies from and to the host."""
        return _total([part.device_seconds for part in self.partitions])

    @property
    def host_seconds(self) -> dict[str, float]:
        """The host's time for each of its activities, summed over the runs of all partitions."""
        found: dict[str, float] = {}
        for part in self.partitions:
            for name, seconds in part.host_seconds.items():
                found[name] = found.get(name, 0.0) + seconds
        return found

    def by_op(self) -> list[OpTotal]:
        """Return the kernels grouped by operation, the slowest first."""
        groups: dict[str, list[KernelProfile]] = {}
        for part in self.partitions:
            for kernel in part.kernels:
                groups.setdefault(kernel.op, []).append(kernel)
        totals = [
            OpTotal(op, len(some), sum(k.seconds for k in some), _floors(some))
            for op, some in groups.items()
        ]
        return sorted(totals, key=lambda total: -total.seconds)

    def __str__(self) -> str:
        """Return the times of an invoke and of each operation as a table, in microseconds."""
        title, times, by_op = self._summary()
        rows = [*times, ("operation", "µs"), *((op, us) for op, _, us, _ in by_op)]
        width = max(len(name) for name, _ in rows)
        return "\n".join([title, *(f"{name:{width}}  {us:>10}" for name, us in rows)])

    def _summary(self) -> tuple[str, list[tuple[str, str]], list[tuple[str, str, str, str]]]:
        """Return a title, the times of an invoke, and rows of (op, kernels, time, share)."""
        title = f"litegpu on {self.device} ({self.backend}, {self.precision})"
        kernels = [kernel for part in self.partitions for kernel in part.kernels]
        times = {
            f"{counted(len(kernels), 'kernel')}, each measured alone": self.kernel_seconds,
            "their floors": self.floor_seconds,
            "all kernels in sequence": self.chain_seconds,
            "device, with copies": self.device_seconds,
            "interpreter.invoke()": self.invoke_seconds,
            "thereof runtime, Python, nodes on the CPU": self.outside_seconds,
        }
        known = [(name, _us(seconds)) for name, seconds in times.items() if seconds is not None]
        by_op = [
            (each.op, str(each.kernels), _us(each.seconds), _share(each.seconds, self))
            for each in self.by_op()
        ]
        return title, known, by_op

    def _repr_html_(self) -> str:
        """Return tables for notebooks."""
        title, known, by_op = self._summary()
        kernels = [kernel for part in self.partitions for kernel in part.kernels]
        each_kernel = notebook.table(
            ("kernel", "operation", ">node", ">µs", ">share", ">floor µs"),
            [
                (
                    *(kernel.template, kernel.op, str(kernel.node) if kernel.node >= 0 else ""),
                    *(_us(kernel.seconds), _share(kernel.seconds, self)),
                    _us(kernel.floor_seconds),
                )
                for kernel in kernels
            ],
        )
        return "".join(
            [
                notebook.paragraph(title, bold=True),
                notebook.table(("time of an invoke", ">µs"), known),
                notebook.table(("operation", ">kernels", ">µs", ">share"), by_op),
                notebook.folded("kernels", each_kernel),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all measurements as JSON-able data."""
        return {
            "backend": self.backend,
            "device": self.device,
            "precision": self.precision,
            "repeats": self.repeats,
            "peaks": self.peaks.to_dict() if self.peaks else None,
            "partitions": [part.to_dict() for part in self.partitions],
            "kernel_seconds": self.kernel_seconds,
            "floor_seconds": self.floor_seconds,
            "chain_seconds": self.chain_seconds,
            "device_seconds": self.device_seconds,
            "host_seconds": self.host_seconds,
            "invoke_seconds": self.invoke_seconds,
            "outside_seconds": self.outside_seconds,
            "by_op": [total._asdict() for total in self.by_op()],
        }

    def to_trace(self) -> dict[str, Any]:
        """Return a trace in the Trace Event Format, which ui.perfetto.dev and Chrome open.

        The method computes the trace from the medians. Each partition has a track with its kernels
        in sequence, which starts when the host begins to submit the partition.
        """
        events = [*_names(self.device, len(self.partitions)), *_timeline(self.partitions)]
        about = {
            "backend": self.backend,
            "device": self.device,
            "precision": self.precision,
            "repeats": self.repeats,
        }
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def take_profile(
    device: Device,
    precision: str,
    kernels: Sequence[PartitionKernel],
    interpreter: Any,
    *,
    repeats: int,
    peaks: bool,
) -> Profile:
    """Measure partitions, and the runs of their graph. See GpuDelegate.profile."""
    if repeats < 1:
        raise OptionsError(f"repeats={repeats}: a profile needs a whole number of at least 1.")
    limits = measure(device) if peaks else None
    whole = outside = None
    if interpreter is not None:
        run = partial(invoke, interpreter)
        whole = _median_seconds(run, repeats)
        with contextlib.ExitStack() as idle:
            for kernel in kernels:
                idle.enter_context(kernel.idle())
            outside = _median_seconds(run, repeats)
    return Profile(
        backend=device.info.backend,
        device=device.info.name,
        precision=precision,
        repeats=repeats,
        peaks=limits,
        partitions=tuple(kernel.profile(repeats, limits) for kernel in kernels),
        invoke_seconds=whole,
        outside_seconds=outside,
    )


def signature_target(interpreter: Any, signature: str) -> SignatureTarget:
    """Return a signature of an interpreter with allocated tensors.

    Raises InterpreterError without an interpreter, and ModelError for an unknown signature.
    """
    if interpreter is None:
        raise InterpreterError(
            f"signature='{signature}' is a signature of an interpreter. Pass the interpreter to "
            "profile(), too."
        )
    known = [*interpreter.get_signature_list()]
    if signature not in known:
        raise ModelError(
            f"The model has no signature '{signature}'.{did_you_mean(signature, known)}"
        )
    target = SignatureTarget(interpreter, signature)
    target.allocate_tensors()
    return target


def of_graph(kernels: Sequence[PartitionKernel], graph: int) -> list[PartitionKernel]:
    """Return the kernels that a run of a graph may run. Raises ModelError if there are none."""
    found = [kernel for kernel in kernels if graph in kernel.runners]
    if not found:
        raise ModelError(
            f"There is nothing to profile: the GPU runs nodes of other graphs, but none of graph "
            f"{graph}. Profile another signature; `litegpu check` lists every node."
        )
    return found


def _median_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call in seconds; a first call is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def nothing_to_profile(
    report: DelegationReport | None, error: BaseException | None
) -> LitegpuError:
    """Return the error for a delegate that has no partition in an interpreter."""
    if report is None or report.partitions:
        cause = f" ({error})" if error else ""
        return InterpreterError(
            f"There is nothing to profile: no interpreter uses this delegate{cause}. Pass it to "
            "an interpreter, call allocate_tensors(), and keep the interpreter."
        )
    reasons = list(dict.fromkeys(f"{node.op}: {node.reason}" for node in report.rejected))
    shown = [*reasons[:_REASONS], *list(report.left_lines())[:_REASONS], *report.notes]
    return ModelError(
        "There is nothing to profile: no node of this model runs on the GPU. "
        f"{' '.join(shown)} `litegpu check` lists every node."
    )


_REASONS = 3
"""Maximum number of reasons that an error lists."""


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


def _share(seconds: float, profile: Profile) -> str:
    total = profile.kernel_seconds
    return f"{seconds / total:.0%}" if total else ""


def _total(parts: list[float | None]) -> float | None:
    return None if None in parts else sum(part or 0.0 for part in parts)


def _floors(kernels: list[KernelProfile]) -> float | None:
    return _total([kernel.floor_seconds for kernel in kernels])


_PROCESS = 1
_HOST = 0
"""The number of the host's track; partition n has track n + 1."""
_SUBMIT = "submit"


def _names(device: str, partitions: int) -> Iterator[dict[str, Any]]:
    """Yield the metadata events that name the tracks."""
    titles = ["host", *(f"partition {number}" for number in range(partitions))]
    yield _metadata("process_name", _HOST, f"litegpu on {device}")
    for track, title in enumerate(titles):
        yield _metadata("thread_name", track, title)


def _metadata(what: str, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _timeline(partitions: tuple[PartitionProfile, ...]) -> Iterator[dict[str, Any]]:
    """Yield the complete events; each partition starts after the end of the previous one."""
    now = 0.0
    for number, part in enumerate(partitions):
        host = device = now
        for name, seconds in part.host_seconds.items():
            if name == _SUBMIT:
                device = host
            yield _event(name, "host", _HOST, host, seconds, {"partition": number})
            host += seconds
        for kernel in part.kernels:
            args = kernel.to_dict()
            yield _event(kernel.template, kernel.op, number + 1, device, kernel.seconds, args)
            device += kernel.seconds
        now = max(host, device)


def _event(
    name: str, category: str, track: int, start: float, seconds: float, args: dict[str, Any]
) -> dict[str, Any]:
    """Return a "complete" event of the trace format; its times are in microseconds."""
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "args": args,
    }
