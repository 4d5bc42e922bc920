"""A partition runs once when it is compiled."""

from __future__ import annotations

import pytest

from litegpu import ExecutionError, GpuDelegate
from litegpu.backends.base import Device
from litegpu.backends.execution import ExecutionContext
from litegpu.backends.opencl.context import OpenCLContext
from litegpu.engine.compiled import CompiledPartition
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
