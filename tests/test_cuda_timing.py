"""Which graph the CUDA backend times between its events; needs no GPU."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from litegpu.backends.cuda_recording import CUDARecording
from test_cuda_errors import Status, gives


@pytest.mark.parametrize(
    ("copies", "timed", "destroyed"), [(True, "whole", []), (False, ["launch"], [["launch"]])]
)
def test_device_time_is_the_median_of_the_graph_that_was_asked_for(
    copies: bool, timed: Any, destroyed: list[Any]
) -> None:
    launched: list[Any] = []
    released: list[Any] = []
    events = itertools.count()
    milliseconds = iter([5.0, 1.0, 3.0])

    def noting(kept: list[Any]) -> Any:
        def function(graph: Any, *_: Any) -> tuple[Status]:
            kept.append(graph)
            return (Status.CUDA_SUCCESS,)

        return function

    driver = SimpleNamespace(
        cuEventCreate=lambda _flags: (Status.CUDA_SUCCESS, next(events)),
        cuEventRecord=gives(),
        cuGraphLaunch=noting(launched),
        cuStreamSynchronize=gives(),
        cuEventElapsedTime=lambda start, end: (
            Status.CUDA_SUCCESS,
            next(milliseconds) * (end - start),
        ),
        cuEventDestroy=gives(),
        cuGraphExecDestroy=noting(released),
    )
    holder: Any = SimpleNamespace(
        _cu=driver,
        _current=contextlib.nullcontext(),
        _stream=8,
        _graph="whole",
        _launches=["launch"],
        _capture=list,
    )
    assert CUDARecording.device_seconds(holder, 3, copies) == pytest.approx(3e-3)
    assert launched == [timed] * 3
    assert released == destroyed, "a graph made for this is not kept"
