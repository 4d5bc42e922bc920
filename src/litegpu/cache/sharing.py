"""Partitions of one process that are alike: one executable, and one copy of the weights."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from litegpu.backends.base import Device
from litegpu.backends.execution import Executable
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.facts import PartitionFacts
from litegpu.engine.partition import constant_outputs
from litegpu.errors import LitegpuError
from litegpu.graph import Graph


@dataclass(frozen=True, slots=True)
class _Alike:
    """What a partition is beside its executable, and where."""

    key: bytes
    device: weakref.ref[Device]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    facts: PartitionFacts


_running: weakref.WeakKeyDictionary[Executable, _Alike] = weakref.WeakKeyDictionary()


def share_partition(key: bytes, device: Device, compiled: CompiledPartition) -> None:
    """Let later partitions with this key (see CachedPartitions.key) share the executable."""
    ends = (compiled.inputs, compiled.outputs, compiled.facts)
    _running[compiled.executable] = _Alike(key, weakref.ref(device), *ends)


def shared_partition(key: bytes, device: Device, graph: Graph) -> CompiledPartition | None:
    """Return the partition of a graph on the executable of another one with that key, which runs.

    None if there is none on the device, or it cannot have a further context.
    """
    for executable, found in [*_running.items()]:
        if found.key == key and found.device() is device and not device.lost:
            try:
                constants = constant_outputs(graph)
                return CompiledPartition.create(
                    found.inputs, found.outputs, executable, found.facts, constants
                )
            except LitegpuError:  # such as one that was released meanwhile
                continue
    return None
