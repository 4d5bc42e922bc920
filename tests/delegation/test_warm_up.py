"""A partition runs once when it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from litegpu import ExecutionError, GpuDelegate, backends
from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings, DeviceBuffer
from litegpu.backends.execution import ExecutionContext
from litegpu.backends.opencl.context import OpenCLContext
from litegpu.engine.compiled import CompiledPartition
from litegpu.errors import DeviceMemoryError
from litegpu.options import InferencePreference
from small_models import assert_close, chain, interpreter, random, reference, run


@pytest.mark.parametrize("preference", InferencePreference)
def test_partitions_are_run_once_when_they_are_compiled(
    preference: InferencePreference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No invoke waits for what a driver leaves to the first run, not after a resize either."""
    runs: list[int] = []
    real = CompiledPartition.warm_up

    def counted(self: CompiledPartition, device: Device) -> None:
        runs.append(len(self.inputs))
        real(self, device)

    monkeypatch.setattr(CompiledPartition, "warm_up", counted)
    model, x = chain(["ABS", "NEG"]), random(1, 4, 4, 4)
    target = interpreter(model, GpuDelegate(inference_preference=preference))
    assert runs == [1]
    assert_close(run(target, x), reference(model, x))
    target.resize_tensor_input(0, [2, 4, 4, 4])
    target.allocate_tensors()
    assert runs == [1, 1]
    x = random(2, 4, 4, 4)
    assert_close(run(target, x), reference(model, x))


@pytest.mark.parametrize("has_room", [True, False])
def test_large_inputs_and_outputs_of_the_first_run_are_on_the_device(
    backend: str, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litegpu.engine.compiled._LARGE_BYTES", 100)
    bound: list[Bindings] = []
    for kind in (ExecutionContext, OpenCLContext):
        first_run = kind.first_run

        def noted(
            self: Any, bindings: Bindings, first_run: Callable[..., None] = first_run
        ) -> None:
            bound.append(bindings)
            first_run(self, bindings)

        monkeypatch.setattr(kind, "first_run", noted)

    def full(*_: object) -> None:
        raise DeviceMemoryError("no room")

    delegate = GpuDelegate(backend=backend, cache=False)
    model, x = chain(["ABS", "NEG"]), random(1, 4, 4, 4)
    with monkeypatch.context() as patched:
        if not has_room:
            patched.setattr(type(backends.BACKENDS[backend].open(0)), "allocate", full)
        target = interpreter(model, delegate)
    buffers = (*bound[0].inputs, *bound[0].outputs)
    assert {isinstance(buffer, DeviceBuffer) for buffer in buffers} == {has_room}
    assert_close(run(target, x), reference(model, x))


def test_a_first_run_that_fails_leaves_the_model_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise ExecutionError("the device is on fire")

    monkeypatch.setattr(ExecutionContext, "first_run", failing)
    monkeypatch.setattr(OpenCLContext, "first_run", failing)
    delegate = GpuDelegate(inference_preference=InferencePreference.SUSTAINED_SPEED)
    model, x = chain(["ABS", "NEG"]), random(1, 4, 4, 4)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert delegate.report is not None and not delegate.report.partitions
    assert "2 nodes left to the CPU: the device is on fire" in caplog.text
