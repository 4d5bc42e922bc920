"""Measures the latency of an interpreter, and the difference between the outputs of two runs."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from litegpu import DelegationReport
from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.console import progress


@dataclass(frozen=True)
class Latency:
    """Times of `invoke()` in milliseconds."""

    runs: int
    median_ms: float
    min_ms: float
    max_ms: float
    times_ms: tuple[float, ...] = ()
    """Each run's time, in order."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-serializable data, without the times of single runs."""
        return {name: value for name, value in asdict(self).items() if name != "times_ms"}


@dataclass(frozen=True)
class Agreement:
    """The difference of an output from its reference; `relative_l2` is relative to its norm.

    Outputs that contain NaN are never equal.
    """

    name: str
    relative_l2: float
    max_abs: float
    top1_equal: bool
    has_nan: bool


@dataclass(frozen=True)
class Comparison:
    """The comparison of a graph on GPU and CPU; None or empty if the CPU cannot run the graph.

    `report` is the delegation report of the graph.
    """

    outputs: list[Output]
    report: DelegationReport | None
    gpu: Latency
    cpu: Latency | None
    agreement: list[Agreement]

    @property
    def ran_on_gpu(self) -> bool:
        """Whether any node of the graph runs on the GPU."""
        return bool(self.report and self.report.delegated_nodes)


def time_invokes(interpreter: Any, runs: int, max_secs: float, label: str) -> Latency:
    """Time `runs` invocations after one warm-up run; stop after `max_secs` seconds."""
    interpreter.invoke()
    times: list[float] = []
    deadline = time.perf_counter() + max_secs
    for _ in progress(range(runs), label):
        start = time.perf_counter()
        interpreter.invoke()
        end = time.perf_counter()
        times.append((end - start) * 1e3)
        if end > deadline:
            break
    return Latency(len(times), statistics.median(times), min(times), max(times), tuple(times))


def compare(tested: Output, reference: Output) -> Agreement:
    """Compare an output with the reference, in double precision."""
    got = tested.values.astype(np.float64)
    want = reference.values.astype(np.float64)
    has_nan = bool(np.isnan(got).any() or np.isnan(want).any())
    difference, norm = np.linalg.norm(got - want), np.linalg.norm(want)
    relative = float(difference / norm) if norm else float(difference and np.inf)
    return Agreement(
        name=reference.name,
        relative_l2=relative,
        max_abs=float(np.max(np.abs(got - want), initial=0)),
        top1_equal=not has_nan and bool(got.size == 0 or got.argmax() == want.argmax()),
        has_nan=has_nan,
    )
