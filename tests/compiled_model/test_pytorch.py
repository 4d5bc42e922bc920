"""PyTorch tensors on an NVIDIA GPU as inputs and outputs, on busy streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu import BindingError, CompiledModel, CompiledModelError, GpuDelegate, TensorBuffer
from small_models import chain, interpreter

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch sees no NVIDIA GPU here"
)
SHAPE = (1, 64, 64, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
_BUSY_CYCLES = 100_000_000
"""A kernel of about 50 ms."""


@pytest.fixture
def model() -> Any:
    with CompiledModel.from_buffer(chain(["ABS", "NEG"], SHAPE), backend="cuda") as found:
        yield found


def late(stream: Any, factor: float) -> Any:
    """Return a tensor that gets its values on a stream, after a while."""
    with torch.cuda.stream(stream):
        tensor = torch.full(SHAPE, float("nan"), device="cuda")
        torch.cuda._sleep(_BUSY_CYCLES)
        tensor.copy_(torch.from_numpy(X * factor).pin_memory(), non_blocking=True)
    return tensor


def test_a_call_waits_for_what_is_on_the_stream(model: CompiledModel) -> None:
    for factor in (1.0, -2.0):
        stream = torch.cuda.Stream()
        source = late(stream, factor)
        with torch.cuda.stream(stream):
            result = torch.from_dlpack(model(source))
            doubled = (result * 2).cpu()
        assert result.device == source.device and result.shape == SHAPE
        np.testing.assert_array_equal(doubled.numpy(), -2 * np.abs(X * factor))


@pytest.mark.parametrize("offset", [0, 4, 1])
def test_runs_on_bound_tensors(model: CompiledModel, offset: int) -> None:
    """Tensors whose address is not aligned for vectors are copied."""
    stream = torch.cuda.Stream()
    spaces = [torch.full((X.size + 8,), float("nan"), device="cuda") for _ in range(2)]
    source, result = (space[offset : offset + X.size].view(SHAPE) for space in spaces)
    torch.cuda.synchronize()
    ends = [TensorBuffer.of(source)], [TensorBuffer.of(result)]
    for factor in (1.0, 3.0, -1.0):
        values = late(stream, factor)
        with torch.cuda.stream(stream):
            source.copy_(values)
        model.run_by_index(0, *ends, stream=stream)
        np.testing.assert_array_equal(result.cpu().numpy(), -np.abs(X * factor))
        around = spaces[1].cpu().numpy()
        assert np.isnan(around).sum() == 8, "only the tensor was written"


def test_submitted_runs(model: CompiledModel) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        futures = [model.submit(late(stream, float(number))) for number in range(1, 5)]
    for number, future in enumerate(futures, 1):
        result = torch.from_dlpack(future.result())
        np.testing.assert_array_equal(result.cpu().numpy(), -np.abs(X * number))


def test_tensors_bound_in_an_interpreter() -> None:
    gpu = GpuDelegate(backend="cuda")
    target = interpreter(chain(["ABS", "NEG"], SHAPE), gpu)
    places = [side()[0]["index"] for side in (target.get_input_details, target.get_output_details)]
    source, result = (torch.zeros(SHAPE, device="cuda") for _ in range(2))
    for place, tensor in zip(places, (source, result), strict=True):
        gpu.bind_buffer(target, place, TensorBuffer.of(tensor))
    for factor in (1.0, -5.0):
        source.copy_(torch.from_numpy(X * factor))
        torch.cuda.synchronize()
        target.invoke()
        np.testing.assert_array_equal(result.cpu().numpy(), -np.abs(X * factor))


def test_results_outlive_everything() -> None:
    with CompiledModel.from_buffer(chain(["ABS"], SHAPE), backend="cuda") as model:
        result = torch.from_dlpack(model(torch.from_numpy(X).cuda()))
    del model
    np.testing.assert_array_equal(result.cpu().numpy(), np.abs(X))


def test_what_does_not_fit(model: CompiledModel) -> None:
    whole = torch.from_numpy(X).cuda()
    outputs = model.create_output_buffers(memory="device")
    with pytest.raises(BindingError, match=r"is not in C order"):
        TensorBuffer.of(whole.permute(0, 3, 1, 2))
    with pytest.raises(CompiledModelError, match=r"shape"):
        model(whole[:, :1])
    with pytest.raises(CompiledModelError, match=r"float16"):
        model.run_by_index(0, [TensorBuffer.of(whole.half())], outputs)
    buffer = TensorBuffer.of(whole)
    model.run_by_index(0, [buffer], outputs)
    buffer.destroy()
    with pytest.raises(CompiledModelError, match=r"has been destroyed"):
        model.run_by_index(0, [buffer], outputs)
    np.testing.assert_array_equal(model(X), -np.abs(X), "the model still runs")
