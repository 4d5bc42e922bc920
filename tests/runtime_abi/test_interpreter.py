"""The runtime's interpreters as the tools use them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu import zoo
from litegpu.errors import MissingDependencyError, ModelError
from litegpu.pictures import images
from litegpu.runtime_abi import interpreter as runtime


def test_a_model_runs_on_the_cpu_with_both_kernel_sets() -> None:
    model = zoo.load("zoo:mobilenet_v1_0.25_128")
    results = []
    for builtin_kernels in (False, True):
        interpreter = runtime.interpreter(model, builtin_kernels=builtin_kernels)
        runtime.set_inputs(interpreter, [images.random_tensor(interpreter.get_input_details()[0])])
        interpreter.invoke()
        results.append(runtime.outputs(interpreter)[0])
    assert results[0].values.shape == (1, 1001)
    np.testing.assert_allclose(results[0].values, results[1].values, atol=1e-5)


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x1c\x00\x00\x00TFL3"])
def test_a_damaged_model_is_an_error_with_a_remedy(content: bytes) -> None:
    with pytest.raises(ModelError, match=r"rejects this model: .* complete \.tflite model"):
        runtime.interpreter(content)


def test_quantised_outputs_become_real_numbers() -> None:
    class Quantised:
        def get_output_details(self) -> list[dict[str, Any]]:
            return [{"name": "scores", "index": 7, "quantization": (0.5, 10)}]

        def get_tensor(self, index: int) -> Any:
            assert index == 7
            return np.array([[10, 12, 255]], np.uint8)

    assert runtime.outputs(Quantised())[0].values.tolist() == [[0.0, 1.0, 122.5]]


def test_a_missing_runtime_names_the_command_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "RUNTIMES", ("litegpu_has_no_such_module",))
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[runtime\]'"):
        runtime.interpreter(b"")


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("PIL", lambda: images.open_picture("picture.jpg")),
    ],
)
def test_a_missing_extra_names_the_command_to_type(
    package: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes importing it fail
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[tools\]'"):
        use()
