"""Shares executables and weights among equal partitions of a process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from litegpu.backends.base import Device
from litegpu.backends.execution import Executable
from litegpu.cache.fingerprint import Fingerprint
from litegpu.engine.compiled import CompiledPartition, constant_outputs
from litegpu.engine.facts import PartitionFacts
from litegpu.errors import LitegpuError
from litegpu.graph import Graph


@dataclass(frozen=True, slots=True)
class _RunningPartition:
    """A running partition, stored without its executable, for comparison with new partitions."""

    outline: bytes
    key: bytes
    device: weakref.ref[Device]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    facts: PartitionFacts


class _Start:
    """A lock that makes equal partitions start one at a time, so that later partitions can share.

    The lock is reentrant, because a signal handler may start a partition on the same thread.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()


_running: weakref.WeakKeyDictionary[Executable, _RunningPartition] = weakref.WeakKeyDictionary()
_starts: weakref.WeakValueDictionary[tuple[int, bytes], _Start] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_or_new(
    name: Fingerprint,
    device: Device,
    graph: Graph,
    make: Callable[[Callable[[], bytes]], tuple[CompiledPartition, bool]],
) -> CompiledPartition:
    """Return a partition that shares the executable of an equal partition, or a new partition.

    `name` is the fingerprint of all data on which the partition depends, except the device. The
    function calls `make` with a function that returns the complete fingerprint, which is computed
    in parallel. `make` returns a partition, and whether its content is that of the fingerprint. The
    weights are hashed immediately, because their file may be overwritten before another partition
    needs the hash. Raises the errors of `make`.
    """
    outline = name.outline()
    with _lock:
        start = _starts.setdefault((id(device), outline), _Start())
    with start.lock, ThreadPoolExecutor(1) as background:
        whole = background.submit(name.whole).result
        if any(found.outline == outline for found in [*_running.values()]):
            shared = _shared(whole(), device, graph)
            if shared is not None:
                return shared
        compiled, holds = make(whole)
        if holds:
            ends = (compiled.inputs, compiled.outputs, compiled.facts)
            found = _RunningPartition(outline, whole(), weakref.ref(device), *ends)
            _running[compiled.executable] = found
        return compiled


def _shared(key: bytes, device: Device, graph: Graph) -> CompiledPartition | None:
    """Return a partition of a graph on the executable with this key; None if none exists."""
    for executable, found in [*_running.items()]:
        if found.key == key and found.device() is device and not device.lost:
            try:
                constants = constant_outputs(graph)
                return CompiledPartition.create(
                    found.inputs, found.outputs, executable, found.facts, constants
                )
            except LitegpuError:  # for example if it was released in the meantime
                continue
    return None
