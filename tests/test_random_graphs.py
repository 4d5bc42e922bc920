"""Random models give the same numbers on the GPU as on the CPU, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litegpu import GpuDelegate
from litegpu.graph import Graph
from litegpu.ops.support import Examination, examine
from litegpu.options import InferencePriority
from litegpu.tools import runtime
from random_models import RandomModel, random_models, whole_numbers

MODES: dict[str, dict[str, Any]] = {
    "float": {"precision": "fp32"},
    "half": {"precision": "fp16", "inference_priority1": InferencePriority.MIN_MEMORY_USAGE},
}


@pytest.mark.parametrize("mode", MODES)
@given(model=random_models())
def test_random_models_are_exact(mode: str, model: RandomModel) -> None:
    delegate = GpuDelegate(**MODES[mode])
    target = runtime.interpreter(model.content, delegate, builtin_kernels=True)
    assert delegate.report is not None and delegate.report.whole_graph, str(delegate.report)
    expected = results(runtime.interpreter(model.content, builtin_kernels=True))
    for name, values in results(target).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


@given(
    model=random_models(),
    on_cpu=st.sets(st.integers(0, 7), min_size=1, max_size=4),
    limit=st.sampled_from([1, 2, 99]),
)
def test_random_splits_are_exact(model: RandomModel, on_cpu: set[int], limit: int) -> None:
    """Whatever nodes stay on the CPU, both sides hand each other the right tensors."""

    def refusing(graph: Graph, quantized: bool) -> Examination:
        found = examine(graph, quantized)
        refused = {n.index: "Drawn." for n in graph.nodes if n.index in on_cpu}
        return replace(found, reasons={**found.reasons, **refused})

    delegate = GpuDelegate(precision="fp32", max_delegated_partitions=limit)
    with mock.patch("litegpu.delegate.examine", refusing):
        target = runtime.interpreter(model.content, delegate, builtin_kernels=True)
    assert delegate.error is None and delegate.report is not None, delegate.error
    assert len(delegate.report.partitions) <= limit
    assert not on_cpu.intersection(delegate.report.delegated_nodes)
    reference = runtime.interpreter(model.content, builtin_kernels=True)
    for first_seed in (0, 10, 0):
        expected = results(reference, first_seed)
        for name, values in results(target, first_seed).items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)


def results(target: Any, first_seed: int = 0) -> dict[str, Any]:
    """Run an interpreter on seeded inputs; outputs by name."""
    for seed, detail in enumerate(target.get_input_details(), start=first_seed):
        target.set_tensor(detail["index"], whole_numbers(tuple(detail["shape"]), seed))
    target.invoke()
    return {output.name: output.values for output in runtime.outputs(target)}
