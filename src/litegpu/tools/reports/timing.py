"""Report sections about time and energy: kernels with floors (lower bounds), ops, latencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from litegpu import KernelProfile, OpTotal, Profile
from litegpu.tools.reports.charts import bars, histogram, lines
from litegpu.tools.reports.sections import Section, Table
from litegpu.tools.reports.words import percent, shape_text, us

_MAX_BARS = 30
_LARGE = 1e-2
"""Minimum time, in seconds, for which an axis is in milliseconds instead of microseconds."""
_PERCENTILES = (50, 95)


def profile_sections(profile: Profile) -> Iterator[Section]:
    """Yield sections with the time of kernels, ops and host code from a profile."""
    kernels = [kernel for part in profile.partitions for kernel in part.kernels]
    total = profile.kernel_seconds
    slowest = sorted(kernels, key=lambda kernel: -kernel.seconds)[:_MAX_BARS]
    rest = len(kernels) - len(slowest)
    if slowest:
        yield bars(
            "Slowest kernels",
            [_name(kernel) for kernel in slowest],
            *_scaled([kernel.seconds for kernel in slowest]),
            floors=_scaled_floors(slowest),
            hints=[_hint(kernel, total) for kernel in slowest],
            note="Each kernel alone, with a warm cache. The floor is the time of its arithmetic or "
            "of moving its bytes once, whichever is longer, at the peak rates measured on "
            f"this device.{f' {rest} faster ones are in the table.' * bool(rest)}",
        )
        by_op = profile.by_op()
        yield bars(
            "Time by operation",
            [f"{each.op} ×{each.kernels}" for each in by_op],
            *_scaled([each.seconds for each in by_op]),
            floors=_scaled_floors(by_op),
            hints=[
                f"{each.op}: {us(each.seconds)} µs, {percent(each.seconds / total if total else 0)}"
                for each in by_op
            ],
            half=True,
        )
    times = _times(profile)
    yield bars(
        "Time of an invoke",
        list(times),
        *_scaled(list(times.values())),
        hints=[f"{name}: {us(seconds)} µs" for name, seconds in times.items()],
        half=True,
    )
    yield Table(
        "Kernels",
        (
            *("kernel", "operation", ">node", "output", ">µs", ">share"),
            *(">GFLOP/s", ">GB/s", ">floor µs", ">efficiency"),
        ),
        [_row(kernel, total) for kernel in kernels],
        folded=len(kernels) > _MAX_BARS,
    )


def _times(profile: Profile) -> dict[str, float]:
    """Return the parts of the time of a run in seconds; unknown times are omitted."""
    found = {
        "kernels, each measured alone": profile.kernel_seconds,
        "their floors": profile.floor_seconds,
        "kernels in sequence": profile.chain_seconds,
        "device, with copies": profile.device_seconds,
        **{f"host: {name}": seconds for name, seconds in profile.host_seconds.items()},
        "interpreter.invoke()": profile.invoke_seconds,
        "runtime, Python, CPU's nodes": profile.outside_seconds,
    }
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _factor(seconds: Iterable[float]) -> float:
    return 1e3 if max(seconds, default=0.0) >= _LARGE else 1e6


def _scaled(seconds: Sequence[float]) -> tuple[list[float], str]:
    """Return times converted to a suitable unit, and the unit."""
    factor = _factor(seconds)
    return [each * factor for each in seconds], "ms" if factor == 1e3 else "µs"


def _scaled_floors(items: Sequence[KernelProfile | OpTotal]) -> list[float | None]:
    """Return the floors (lower bounds) of items, in the unit of the items' times."""
    factor = _factor(each.seconds for each in items)
    floors = (each.floor_seconds for each in items)
    return [None if floor is None else floor * factor for floor in floors]


def _name(kernel: KernelProfile) -> str:
    where = f"#{kernel.node} " if kernel.node >= 0 else ""
    return f"{where}{kernel.op} {shape_text(kernel.shape)}"


def _hint(kernel: KernelProfile, total: float) -> str:
    share = percent(kernel.seconds / total if total else 0)
    parts = [f"{_name(kernel)}, {kernel.template}: {us(kernel.seconds)} µs ({share})"]
    if kernel.floor_seconds is not None:
        parts.append(f"floor {us(kernel.floor_seconds)} µs ({percent(kernel.floor_share)})")
    if kernel.flops:
        parts.append(f"{kernel.flops_per_second / 1e9:.1f} GFLOP/s")
    return ", ".join([*parts, f"{kernel.bytes_per_second / 1e9:.1f} GB/s"])


def _row(kernel: KernelProfile, total: float) -> tuple[str, ...]:
    return (
        *(kernel.template, kernel.op, str(kernel.node) if kernel.node >= 0 else ""),
        *(shape_text(kernel.shape), us(kernel.seconds)),
        percent(kernel.seconds / total if total else 0),
        f"{kernel.flops_per_second / 1e9:.1f}" if kernel.flops else "",
        f"{kernel.bytes_per_second / 1e9:.1f}",
        "" if kernel.floor_seconds is None else us(kernel.floor_seconds),
        percent(kernel.floor_share),
    )


def latency_sections(sides: Mapping[str, Sequence[float]]) -> Iterator[Section]:
    """Yield charts with the distribution and the sequence of latencies for each side.

    Args:
        sides: the latencies of the runs in milliseconds, in order, by side.
    """
    timed = {name: list(times) for name, times in sides.items() if times}
    if not timed:
        return
    first = sorted(next(iter(timed.values())))
    marks = {
        f"p{each}": first[min(int(len(first) * each / 100), len(first) - 1)]
        for each in _PERCENTILES
    }
    yield histogram("Latency", timed, "ms", marks if len(timed) == 1 else None)
    runs = {name: list(enumerate(times, 1)) for name, times in timed.items()}
    yield lines(
        *("Latency, run by run", runs, "run", "ms"),
        half=True,
        points=max(map(len, runs.values())) < 2 * _MAX_BARS,
    )


def energy_section(joules: Mapping[str, float], note: str = "") -> Section:
    """Return a section with the joules per inference of each meter."""
    hints = [f"{name}: {each:.4g} J" for name, each in joules.items()]
    values = list(joules.values())
    return bars("Energy", list(joules), values, "J an inference", hints=hints, note=note)
