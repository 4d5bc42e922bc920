"""Partitions of one process that are alike: one executable, and one copy of the weights."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from litegpu.backends.base import Device
from litegpu.backends.execution import Executable
from litegpu.cache.fingerprint import Fingerprint
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.facts import PartitionFacts
from litegpu.engine.partition import constant_outputs
from litegpu.errors import LitegpuError
from litegpu.graph import Graph


@dataclass(frozen=True, slots=True)
class _Alike:
    """The parts of a partition apart from its executable, and its device."""

    outline: bytes
    key: bytes
    device: weakref.ref[Device]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    facts: PartitionFacts


class _Start:
    """Lets one thread at a time start partitions of one outline: the next may share with it.

    A signal's handler that starts one in the midst of that does not wait for itself.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()


_running: weakref.WeakKeyDictionary[Executable, _Alike] = weakref.WeakKeyDictionary()
_starts: weakref.WeakValueDictionary[tuple[int, bytes], _Start] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_or_else(
    name: Fingerprint,
    device: Device,
    graph: Graph,
    make: Callable[[Callable[[], bytes]], CompiledPartition],
) -> CompiledPartition:
    """Return the partition of a graph on the executable of another that runs, else a new one.

    `name` has all that the partition depends on but the device. `make` may ask what it is called
    with for the whole fingerprint, which is computed in parallel. Weights are read now and not when
    another partition asks for them: their file may have been overwritten by then.
    Raises what `make` does.
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
        compiled = make(whole)
        ends = (compiled.inputs, compiled.outputs, compiled.facts)
        found = _Alike(outline, whole(), weakref.ref(device), *ends)
        _running[compiled.executable] = found
        return compiled


def _shared(key: bytes, device: Device, graph: Graph) -> CompiledPartition | None:
    """Return the partition of a graph on an executable with that key, None if none has one left."""
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
