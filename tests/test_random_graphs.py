"""Random models give the same numbers on the GPU as on the CPU, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from litegpu import GpuDelegate
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


def results(target: Any) -> dict[str, Any]:
    """Run an interpreter on seeded inputs; outputs by name."""
    for seed, detail in enumerate(target.get_input_details()):
        target.set_tensor(detail["index"], whole_numbers(tuple(detail["shape"]), seed))
    target.invoke()
    return {output.name: output.values for output in runtime.outputs(target)}
