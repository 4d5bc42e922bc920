"""Measures a compiled partition: single kernels, all kernels as a chain, and the host's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.facts import LaunchFacts
from litegpu.engine.peaks import Peaks


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One kernel of a partition: its node, work and time."""

    name: str
    template: str
    op: str
    """The operation of the model that the kernel computes."""
    node: int
    """Index of the kernel's node in the model; -1 for a copy that litegpu inserted."""
    merged: tuple[int, ...]
    """Nodes that were fused into the kernel's node."""
    shape: tuple[int, ...]
    """Shape of the kernel's output, [N, H, W, C]."""
    seconds: float
    """Median device time in seconds of this kernel alone, with warm caches."""
    flops: int
    nbytes: int
    """The minimum number of bytes to move: each buffer read once, and the output written once."""
    floor_seconds: float | None
    """The minimum time by the device's measured limits; None if a unit of the kernel was not
    measured.
    """
    operations: Mapping[str, int] = field(default_factory=dict)
    """Operations of each unit (litegpu.ops.common.units): more than `flops` if values are split."""

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def floor_share(self) -> float | None:
        """The ratio of the minimum time to the measured time; 1 is optimal."""
        if self.floor_seconds is None or not self.seconds:
            return None
        return self.floor_seconds / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the profile of the kernel as JSON-serializable data."""
        return {
            **asdict(self),
            "flops_per_second": self.flops_per_second,
            "bytes_per_second": self.bytes_per_second,
            "floor_share": self.floor_share,
        }


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """The kernels of a partition in order, and its median times in seconds."""

    nodes: tuple[int, ...]
    kernels: tuple[KernelProfile, ...]
    chain_seconds: float | None
    """Seconds of all kernels in sequence, as in a run; None if the device cannot measure that."""
    device_seconds: float | None
    """Seconds of all kernels in sequence, including the copies from and to the host."""
    host_seconds: Mapping[str, float]
    """Seconds of each part of the host's work in a run, in order."""
    graph: int = 0
    """The number of the partition's graph in the model."""

    @property
    def kernel_seconds(self) -> float:
        """The sum of the kernels' times, each measured alone."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def floor_seconds(self) -> float | None:
        """The sum of the kernels' minimum times."""
        floors = [kernel.floor_seconds for kernel in self.kernels]
        return None if None in floors else sum(floor or 0.0 for floor in floors)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile of the partition as JSON-serializable data."""
        return {
            "graph": self.graph,
            "nodes": list(self.nodes),
            "kernels": [kernel.to_dict() for kernel in self.kernels],
            "kernel_seconds": self.kernel_seconds,
            "floor_seconds": self.floor_seconds,
            "chain_seconds": self.chain_seconds,
            "device_seconds": self.device_seconds,
            "host_seconds": dict(self.host_seconds),
        }


def profile_partition(
    compiled: CompiledPartition,
    ops: Mapping[int, str],
    repeats: int,
    peaks: Peaks | None,
    zero_copy: bool = False,
) -> PartitionProfile:
    """Measure the kernels of a partition and the host's work.

    `ops` names the model's operation of each node.

    The measured partition runs on noise from a fixed seed. With `zero_copy`, the partition runs on
    the current inputs in the pinned memory of the context, if there is any. The measurement
    overwrites the previous contents of device memory. Raises ExecutionError when the device fails.
    """
    profiler = compiled.context.profiler()
    pinned = compiled.context.pinned() if zero_copy else None
    buffers = compiled.buffers()
    random = np.random.default_rng(0)
    for v in compiled.inputs:
        buffers[v][...] = random.uniform(-1, 1, buffers[v].shape)
    bindings = pinned or compiled.bindings(
        [c_void_p(buffers[v].ctypes.data) for v in compiled.inputs],
        [c_void_p(buffers[v].ctypes.data) for v in compiled.outputs],
    )
    # Interleave the measurements so that all see the same machine state; discard the first round.
    rounds = [
        (
            profiler.phases(bindings),
            profiler.device_seconds(bindings),
            profiler.chain_seconds(),
            profiler.durations(),
        )
        for _ in range(repeats + 1)
    ][1:]
    phases, device, chain, durations = zip(*rounds, strict=True)
    times = [float(np.median(each)) for each in zip(*durations, strict=True)]
    return PartitionProfile(
        nodes=tuple(ops),
        kernels=tuple(
            _kernel(launch, seconds, ops, peaks)
            for launch, seconds in zip(compiled.facts.launches, times, strict=True)
        ),
        chain_seconds=_median(chain),
        device_seconds=_median(device),
        host_seconds={name: float(np.median([p[name] for p in phases])) for name in phases[0]},
    )


def _kernel(
    launch: LaunchFacts, seconds: float, ops: Mapping[int, str], peaks: Peaks | None
) -> KernelProfile:
    floor = peaks.floor(launch.operations, launch.nbytes) if peaks else None
    return KernelProfile(
        name=launch.kernel,
        template=launch.template,
        op=ops.get(launch.node, launch.op),
        node=launch.node,
        merged=launch.merged,
        shape=launch.shape,
        seconds=seconds,
        flops=launch.flops,
        nbytes=launch.nbytes,
        floor_seconds=floor,
        operations={unit.value: count for unit, count in launch.operations.items()},
    )


def _median(samples: Sequence[float | None]) -> float | None:
    known = [sample for sample in samples if sample is not None]
    return float(np.median(known)) if known else None
