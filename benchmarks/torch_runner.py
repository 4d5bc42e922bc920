"""Runs a rebuilt model with PyTorch on an NVIDIA GPU: eager, as a CUDA graph, or compiled first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from model_graph import read_model
from torch_models import NotExpressibleError, TorchModel
from ways import LeftOutError, Model, Runner

_WARM_UP_RUNS = 3


def make_runner(mode: str, precision: str, symmetric: bool, model: Model) -> Runner:
    """Return a model rebuilt with PyTorch: `mode` is eager, graph, or compile (with a graph).

    Raises LeftOutError when the model has no counterpart.
    """
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch._dynamo.reset()
    dtype = torch.float16 if precision == "fp16" else torch.float32
    try:
        network = TorchModel(read_model(model.content), symmetric)
    except NotExpressibleError as error:
        raise LeftOutError(str(error)) from error
    if symmetric and not network.changed:
        raise LeftOutError("The model pads evenly already.")
    network = network.eval().cuda().to(dtype, memory_format=torch.channels_last)
    run = torch.compile(network) if mode == "compile" else network
    return _Timed(run, dtype, model, captured=mode != "eager").runner()


class _Timed:
    """The two things that are timed: the network alone, and the network with all copies."""

    def __init__(self, network: Any, dtype: torch.dtype, model: Model, captured: bool) -> None:
        self._network, self._dtype, self._arrays = network, dtype, model.inputs
        self._sources = [torch.from_numpy(np.array(a)).pin_memory() for a in model.inputs]
        self._targets = [
            torch.empty(np.shape(a), dtype=torch.float32, pin_memory=True) for a in model.expected
        ]
        self._copied = [source.cuda() for source in self._sources]
        self._resident = [array.to(dtype) for array in self._copied]
        wrap = _capture if captured else _without_gradients
        self._alone = wrap(self._run_alone)
        self._whole = wrap(self._run_whole)

    def _run_alone(self) -> Any:
        return self._network(*self._resident)

    def _run_whole(self) -> None:
        for copied, source in zip(self._copied, self._sources, strict=True):
            copied.copy_(source, non_blocking=True)
        results = self._network(*(array.to(self._dtype) for array in self._copied))
        for target, result in zip(self._targets, results, strict=True):
            target.copy_(result.float(), non_blocking=True)

    def _call(self) -> Sequence[Any]:
        for source, array in zip(self._sources, self._arrays, strict=True):
            np.copyto(source.numpy(), array)
        self._whole()
        torch.cuda.synchronize()
        return [target.numpy().copy() for target in self._targets]

    def runner(self) -> Runner:
        return Runner(
            self._call,
            {
                "device_ms": lambda repeats: _event_seconds(self._alone, repeats),
                "device_with_copies_ms": lambda repeats: _event_seconds(self._whole, repeats),
            },
            close=_release,
        )


def _without_gradients(run: Callable[[], Any]) -> Callable[[], Any]:
    def wrapped() -> Any:
        with torch.inference_mode():
            return run()

    return wrapped


def _capture(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return what replays a run; the memory of its results stays with the CUDA graph."""
    run = _without_gradients(run)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_RUNS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _event_seconds(run: Callable[[], Any], repeats: int) -> float:
    """Return the median device time between events around a run, after a warm-up."""
    times = []
    for _ in range(_WARM_UP_RUNS + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times[_WARM_UP_RUNS:])


def _release() -> None:
    """Free what PyTorch has cached; the graphs themselves go with the runner."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
