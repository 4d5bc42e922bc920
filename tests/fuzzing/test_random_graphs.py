"""Random models give bit-identical results on the GPU and the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import random_rewrites
import turns
from litegpu import GpuDelegate
from litegpu.options import InferencePriority
from litegpu.runtime_abi import interpreter as runtime
from random_models import RandomModel, random_models, whole_numbers

MODES: dict[str, dict[str, Any]] = {
    "float": {"precision": "fp32"},
    "half": {"precision": "fp16", "inference_priority1": InferencePriority.MIN_MEMORY_USAGE},
}


_SETTINGS = settings(
    max_examples=25 if turns.ALL else 12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("mode", MODES)
@_SETTINGS
@given(model=random_models())
def test_random_models_are_exact(mode: str, model: RandomModel) -> None:
    expected, got = both(mode, model)
    for name, values in got.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@_SETTINGS
@given(model=random_models(random_rewrites.EXACT_STEPS, most=4))
def test_models_of_what_passes_look_for_are_exact(mode: str, model: RandomModel) -> None:
    expected, got = both(mode, model)
    for name, values in got.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


@_SETTINGS
@given(model=random_models(random_rewrites.STEPS, most=4))
def test_models_with_spelled_activations_agree(model: RandomModel) -> None:
    expected, got = both("float", model)
    for name, values in got.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-3, err_msg=name)


def both(mode: str, model: RandomModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the outputs of the CPU and of the GPU, which runs all of the model."""
    delegate = GpuDelegate(**MODES[mode])
    target = runtime.interpreter(model.content, delegate, builtin_kernels=True)
    assert delegate.report is not None and delegate.report.whole_graph, str(delegate.report)
    reference = runtime.interpreter(model.content, builtin_kernels=True)
    return results(reference), results(target)


def results(target: Any, first_seed: int = 0) -> dict[str, Any]:
    """Run an interpreter on seeded inputs; outputs by name."""
    for seed, detail in enumerate(target.get_input_details(), start=first_seed):
        target.set_tensor(detail["index"], whole_numbers(tuple(detail["shape"]), seed))
    target.invoke()
    return {output.name: output.values for output in runtime.outputs(target)}
