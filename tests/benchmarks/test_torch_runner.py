"""What is timed of PyTorch, with the calls of torch.cuda replaced by ones that work on the CPU."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmark_modules import load_benchmark
from small_models import CPU_ONLY, chain

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Everything is done at once."""

    def elapsed_time(self, end: Event) -> float:
        return (end.seconds - self.seconds) * 1e3


class Stream:
    def wait_stream(self, _other: Stream) -> None:
        """Everything is done at once."""


class CUDAGraph:
    replays = 0

    def replay(self) -> None:
        CUDAGraph.replays += 1


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return `make_runner`, for a model given by its bytes, on a GPU that is the CPU."""
    empty = torch.empty
    replaced = {
        torch: {"empty": lambda *a, pin_memory=False, **k: empty(*a, **k)},
        torch.Tensor: {"cuda": torch.Tensor.clone, "pin_memory": torch.Tensor.clone},
        torch.nn.Module: {"cuda": lambda module: module},
        torch.cuda: {
            "synchronize": lambda: None,
            "current_stream": Stream,
            "stream": lambda _stream: contextlib.nullcontext(),
            "graph": lambda _graph: contextlib.nullcontext(),
            "Stream": Stream,
            "Event": Event,
            "CUDAGraph": CUDAGraph,
        },
    }
    switches = (
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_tf32"),
    )
    before = [getattr(position, name) for position, name in switches]
    # The real one loads an LLVM, which the one of an OpenCL on the CPU may not bear beside it.
    monkeypatch.setitem(vars(torch), "_dynamo", SimpleNamespace(reset=lambda: None))
    for position, names in replaced.items():
        for name, value in names.items():
            monkeypatch.setattr(position, name, value)
    monkeypatch.setattr(CUDAGraph, "replays", 0)
    module = load_benchmark("torch_runner", monkeypatch)

    def output(content: bytes, mode: str, precision: str = "fp32", symmetric: bool = False) -> Any:
        reference = module.read_model(content)
        shapes = [reference.values[v].shape for v in reference.inputs]
        inputs = [np.linspace(-1, 1, np.prod(s), dtype=np.float32).reshape(s) for s in shapes]
        expected = [np.maximum(array, 0) for array in inputs]
        model = module.Model("m", content, inputs, expected)
        return module.make_runner(mode, precision, symmetric, model), expected

    yield output
    for (position, name), value in zip(switches, before, strict=True):
        setattr(position, name, value)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 0.0), ("fp16", 1e-3)])
def test_a_call_goes_from_arrays_to_arrays(
    make: Callable[..., Any], precision: str, tolerance: float
) -> None:
    runner, expected = make(chain(["RELU"], (1, 3, 5, 2)), "eager", precision)
    (got,) = runner.call()
    np.testing.assert_allclose(got, expected[0], rtol=0, atol=tolerance)
    assert got.dtype == np.float32
    assert (precision == "fp16") == (not np.array_equal(got, expected[0]))
    assert set(runner.device) == {"device_ms", "device_with_copies_ms"}
    assert all(seconds(3) > 0 for seconds in runner.device.values())
    assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    runner.close()


def test_a_graph_is_captured_once_and_replayed(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    model = sys.modules["torch_models"].TorchModel
    forward = model.forward

    def counted(self: Any, *arrays: Any) -> Any:
        runs.append(arrays)
        return forward(self, *arrays)

    monkeypatch.setattr(model, "forward", counted)
    runner, _ = make(chain(["RELU"]), "graph")
    assert len(runs) == 2 * 4, "three runs to warm up and the captured one, with and without copies"
    runner.call()
    runner.device["device_ms"](5)
    assert CUDAGraph.replays == 1 + 3 + 5
    assert len(runs) == 2 * 4


def test_what_has_no_counterpart_is_left_out(make: Callable[..., Any]) -> None:
    refused = sys.modules["ways"].LeftOutError
    with pytest.raises(refused, match=r"^ROUND \(node 0\) has no PyTorch layer here\.$"):
        make(chain([CPU_ONLY]), "eager")
    with pytest.raises(refused, match=r"^The model pads evenly already\.$"):
        make(chain(["RELU"]), "compile", symmetric=True)
