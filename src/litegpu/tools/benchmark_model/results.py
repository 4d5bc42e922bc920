"""The results of benchmark_model: printed lines, TensorFlow Lite's result file, and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from litegpu.files.wire import Value, message
from litegpu.tools.benchmark_model.energy import Energy
from litegpu.tools.benchmark_model.memory import resident_kb
from litegpu.tools.benchmark_model.memory_gpu import GpuPeak
from litegpu.tools.benchmark_model.session import Session
from litegpu.tools.lines import info, warn
from litegpu.tools.stats import Stats, figure

_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Memory:
    """Growth of host memory in KB since the start of the tool; None if unknown."""

    init: int | None
    overall: int | None
    peak_mb: float
    gpu: GpuPeak | None = None
    """Observed GPU memory in MB; None if not measured, or for a software device."""


@dataclass(frozen=True)
class Results:
    """A session, the times of its runs, and the energy if measured."""

    session: Session
    warm_up: Stats
    runs: Stats
    memory: Memory
    energy: Energy | None = None


def print_timings(found: Results) -> None:
    """Print the summary line of all times."""
    info(
        f"Inference timings in us: Init: {found.session.init_us}, "
        f"First inference: {found.warm_up.first}, Warmup (avg): {figure(found.warm_up.average)}, "
        f"Inference (avg): {figure(found.runs.average)}"
    )


def print_memory(memory: Memory, monitored: bool) -> None:
    """Print the host memory, and the peak that a monitor has observed."""
    if memory.init is not None and memory.overall is not None:
        info(
            "Note: as the benchmark tool itself affects memory footprint, the following is only "
            "APPROXIMATE to the actual memory footprint of the model at runtime. Take the "
            "information at your discretion."
        )
        info(
            "Memory footprint delta from the start of the tool (MB): "
            f"init={figure(memory.init / 1024)} overall={figure(memory.overall / 1024)}"
        )
    if not monitored:
        return
    info(f"Overall peak memory footprint (MB) via periodic monitoring: {figure(memory.peak_mb)}")
    if now := resident_kb():
        info("Memory status at the end of exeution:")  # the original's spelling
        for name, kb in (
            ("- VmRSS              ", now["VmRSS"]),
            ("+ RssAnnon           ", now["RssAnon"]),
            ("+ RssFile + RssShmem ", now["RssFile"] + now["RssShmem"]),
        ):
            info(f"{name}: {figure(kb / 1024)} MB")


def result_message(name: str, found: Results) -> bytes:
    """Return the message BenchmarkResult, without memory figures that are unknown."""
    runs, memory = found.runs, found.memory
    times = (
        *(runs.average, *((min(runs.values), max(runs.values)) if runs.values else (0, 0))),
        *(runs.deviation, *(runs.percentile(percent) for percent in (50, 5, 95))),
        *(found.session.init_us, found.warm_up.first, found.warm_up.average),
    )
    latency = message(*enumerate((np.float32(us / 1e3) for us in times), start=1))
    footprints: list[tuple[int, Value]] = [
        (number, kb) for number, kb in ((1, memory.init), (2, memory.overall)) if kb is not None
    ]
    peak: list[tuple[int, Value]] = [(3, np.float32(memory.peak_mb))] if memory.peak_mb else []
    input_bytes = sum(value.nbytes for value in found.session.values)
    rate = input_bytes / found.runs.average * 1e6 / 2**20 if found.runs.average else 0.0
    misc = message(
        (1, np.float32(len(found.session.model.content) / 1e6)),
        (2, len(found.runs.values)),
        (3, len(found.warm_up.values)),
        (4, np.float32(rate)),
    )
    return message((1, name), (2, latency), (3, message(*footprints, *peak)), (4, misc))


def print_more(found: Results) -> None:
    """Print results beyond TensorFlow Lite's: percentiles, throughput, GPU memory, energy."""
    info(f"Computed by: {found.session.delegates.describe()}")
    if found.runs.values:
        figures = (f"p{percent}={found.runs.percentile(percent)}" for percent in _PERCENTILES)
        info(f"Latency percentiles in us: {' '.join(figures)}")
    if found.runs.average:
        info(f"Throughput (inferences/s): {figure(1e6 / found.runs.average)}")
    if delegate := _delegate_mb(found.session):
        sizes = " ".join(f"{name}={figure(value)}" for name, value in delegate.items())
        info(f"GPU memory of the delegate (MB): {sizes}")
    if found.memory.gpu:
        _print_gpu_peak(found.memory.gpu)
    if found.energy:
        _print_energy(found.energy)


def _print_gpu_peak(peak: GpuPeak) -> None:
    if peak.missing:
        warn(f"The peak GPU memory is not known: {peak.missing}")
    elif peak.own_mb:
        info(f"Peak GPU memory of this process (MB), by NVML: {figure(peak.own_mb)}")
    else:
        info(
            f"Peak GPU memory (MB), by NVML: {figure(peak.grown_mb)} more than before, of all "
            "processes (it does not report this one, for example in a container)"
        )


def _print_energy(energy: Energy) -> None:
    for reason in energy.missing:
        warn(reason)
    if not energy.meters:
        warn("Energy was not measured, because no energy counter can be read on this machine.")
        return
    info(
        f"Energy: {energy.runs} runs in {figure(energy.busy_seconds)} seconds, after "
        f"{figure(energy.idle_seconds)} seconds at rest"
    )
    for each in energy.meters:
        info(
            f"Energy of the {each.kind} ({each.name}): idle={figure(each.idle_watts)} W "
            f"busy={figure(each.busy_watts)} W; per inference (J): total={figure(each.joules)} "
            f"above_idle={figure(each.above_idle_joules)}"
        )
    info(
        f"Energy per inference (J) of {' and '.join(each.kind for each in energy.meters)}: "
        f"total={figure(energy.joules)} above_idle={figure(energy.above_idle_joules)}"
    )


def result_json(name: str, found: Results) -> dict[str, Any]:
    """Return all results as plain data, in microseconds and joules per inference."""
    session, energy = found.session, found.energy
    gpu = session.delegates.gpu
    device = gpu.device.to_dict() if gpu else None
    runs = found.runs
    return {
        "model": session.model.source,
        "benchmark_name": name,
        "computed_by": session.delegates.describe(),
        "device": device,
        "precision": gpu.precision if gpu else "fp32",
        "nodes": _nodes(session),
        "inputs": _tensors(session.target.get_input_details()),
        "outputs": _tensors(session.target.get_output_details()),
        "init_us": session.init_us,
        "warm_up_us": _figures(found.warm_up),
        "inference_us": _figures(runs),
        "inferences_per_second": 1e6 / runs.average if runs.average else None,
        "memory_kb": {name: getattr(found.memory, name) for name in ("init", "overall", "peak_mb")},
        "gpu_memory_mb": _gpu_memory(session, found.memory.gpu),
        "energy": None
        if energy is None
        else {
            **asdict(energy),
            "joules": energy.joules if energy.meters else None,
            "above_idle_joules": energy.above_idle_joules if energy.meters else None,
        },
    }


def _gpu_memory(session: Session, peak: GpuPeak | None) -> dict[str, float | None] | None:
    """Return the delegate's memory and NVML's peaks in MB; None if no GPU runs nodes."""
    delegate = _delegate_mb(session)
    if delegate is None:
        return None
    if peak is None or peak.missing:
        return {**delegate, "process_peak": None, "board_growth": None}
    return {**delegate, "process_peak": peak.own_mb or None, "board_growth": peak.grown_mb}


def _delegate_mb(session: Session) -> dict[str, float] | None:
    """Return the memory of the delegate's tensors and weights; None without delegated nodes."""
    report = session.delegates.gpu.report if session.delegates.gpu else None
    if report is None or not report.partitions:
        return None
    return {
        "tensors": sum(part.arena_bytes for part in report.partitions) / 2**20,
        "weights": sum(part.constant_bytes for part in report.partitions) / 2**20,
    }


def _nodes(session: Session) -> dict[str, int] | None:
    """Return the number of nodes on the GPU and in total; None without a delegate."""
    report = session.delegates.gpu.report if session.delegates.gpu else None
    if report is None:
        return None
    return {"gpu": len(report.delegated_nodes), "all": report.total_nodes}


def _tensors(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": each["name"],
            "shape": [int(size) for size in each["shape"]],
            "type": np.dtype(each["dtype"]).name,
            "quantization": [float(each["quantization"][0]), int(each["quantization"][1])],
        }
        for each in details
    ]


def _figures(stats: Stats) -> dict[str, float]:
    """Return the statistics by name; only the count if there are no values."""
    if not stats.values:
        return {"count": 0}
    return {
        "count": len(stats.values),
        "first": stats.first,
        "min": min(stats.values),
        "max": max(stats.values),
        "avg": stats.average,
        "std": stats.deviation,
        **{f"p{percent}": stats.percentile(percent) for percent in (5, *_PERCENTILES)},
    }
