"""Runs a loop whose number of iterations is known only when the model runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from litegpu.backends.base import Device
from litegpu.backends.buffers import Buffer, Bytes, HostBuffer
from litegpu.backends.execution import Submission
from litegpu.engine.compiled import CompiledPartition
from litegpu.errors import LitegpuError
from litegpu.ops.while_loop import LoopBatch


class DeviceLoop:
    """A compiled batch of loop iterations, with two sets of buffers for loop-carried values.

    Each submission reads one set of buffers and writes the other set. The host reads one bool per
    submission: whether the loop condition still holds.
    """

    def __init__(self, batch: LoopBatch, compiled: CompiledPartition, device: Device) -> None:
        """Allocate the buffers of the loop and bind them.

        Raises DeviceMemoryError if the device lacks memory, or ExecutionError if the device fails.
        """
        self._batch, self._compiled = batch, compiled
        self._holds = np.zeros(1, np.bool_)
        self._buffers: list[Buffer] = []
        self.submissions = 0
        """The number of submissions of all runs."""
        sizes = dict(compiled.sizes())
        try:
            self.others = {
                v: self._allocate(device, sizes[v])
                for v in compiled.inputs
                if v not in batch.inputs
            }
            """The buffers of loop-invariant values, by value id."""
            results = batch.graph.outputs[:-1]
            sets = [[self._allocate(device, sizes[v]) for v in results] for _ in range(2)]
            self._turns = [
                (sets[0], self._bound(sets[0], sets[1])),
                (sets[1], self._bound(sets[1], sets[0])),
            ]
        except BaseException:
            self.close()
            raise

    def _allocate(self, device: Device, size: int) -> Buffer:
        self._buffers.append(device.allocate(size))
        return self._buffers[-1]

    def _bound(self, source: Sequence[Buffer], target: Sequence[Buffer]) -> Submission:
        batch, compiled = self._batch, self._compiled
        *results, holds = batch.graph.outputs
        reads = {**self.others, **dict(zip(batch.inputs, source, strict=True))}
        writes = {**dict(zip(results, target, strict=True)), holds: HostBuffer.of(self._holds)}
        ins, outs = [reads[v] for v in compiled.inputs], [writes[v] for v in compiled.outputs]
        return compiled.context.bind_cached(compiled.watched(ins, outs))

    def run(self, first: Sequence[Bytes], others: Mapping[int, Bytes]) -> list[Bytes]:
        """Return the bytes of the loop-carried values after the last iteration.

        `first` has the bytes of the loop-carried values before the first iteration; `others` has
        the bytes of loop-invariant values, by value id. The loop stops early after a batch with
        values that do not fit half. Raises ExecutionError if the device fails.
        """
        for buffer, data in zip(self._turns[0][0], first, strict=True):
            buffer.write(data)
        for v, buffer in self.others.items():
            buffer.write(others[v])
        watch, turn = self._compiled.watch, 0
        while True:
            self._submit(turn)
            turn = 1 - turn
            if not self._holds[0] or (watch is not None and watch.lost()):
                return [buffer.read() for buffer in self._turns[turn][0]]

    def _submit(self, turn: int) -> None:
        self._turns[turn][1].run()
        self.submissions += 1

    def close(self) -> None:
        """Release the buffers of the loop, even if the device is lost."""
        for buffer in self._buffers:
            with contextlib.suppress(LitegpuError):  # the driver of a lost device may reject that
                buffer.close()
        self._buffers.clear()
