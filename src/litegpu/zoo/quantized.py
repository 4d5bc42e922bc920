"""Int8 networks: the layers of `layers.Net` with post-training quantization.

Quantization ranges are computed from the expected moments of each tensor's elements, without
running the network. The same model name therefore gives the same bytes on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from litegpu.graph.ir import Quantization
from litegpu.zoo.layers import Net, Signal
from litegpu.zoo.weights import Floats, Moments
from litegpu.zoo.writer import TensorRef

_DEVIATIONS = 4.0
"""Number of standard deviations on each side of the mean that a range covers."""
_LOWEST, _HIGHEST = -128, 127
_MAX_WEIGHT = 127
_IMAGE = (-1.0, 1.0)
_PROBABILITY = Quantization((1 / 256,), (_LOWEST,))
"""The output quantization of SOFTMAX and LOGISTIC, which the CPU's kernels require."""
_OF_PROBABILITIES = frozenset({"LOGISTIC", "SOFTMAX"})
_SAME_QUANTIZATION = frozenset(
    {"AVERAGE_POOL_2D", "CONCATENATION", "MAX_POOL_2D", "PAD", "RESHAPE", "RESIZE_BILINEAR"}
)
"""Operations whose results have the same quantization as the first input."""
_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "RESHAPE": 1}
"""Versions of int8 operations whose version is not 2."""


class QuantizedNet(Net):
    """Adds int8 layers, with one weight scale per output channel."""

    dtype = "int8"

    def real(self, x: Signal) -> TensorRef:
        """Add DEQUANTIZE."""
        name = f"{x.ref.name}_dequantized"
        return self.writer.op("DEQUANTIZE", [x.ref], [x.shape], version=2, name=name)

    def _input(self, shape: tuple[int, ...], name: str, moments: Moments) -> Signal:
        image_quantization = _quantization(*_IMAGE)
        ref = self.writer.input(shape, self.dtype, name=name, quantization=image_quantization)
        return Signal(ref, moments, image_quantization)

    def _version(self, builtin: str, version: int) -> int:
        return _VERSIONS.get(builtin, 2)

    def _quantization(
        self, x: Signal, builtin: str, moments: Moments, options: Mapping[str, Any]
    ) -> Quantization | None:
        if builtin in _OF_PROBABILITIES:
            return _PROBABILITY
        if builtin in _SAME_QUANTIZATION:
            return x.quantization
        return _quantization(*_range(moments, options.get("fused_activation_function")))

    def _parameters(self, x: Signal, name: str, pair: tuple[Floats, Floats]) -> list[TensorRef]:
        weights, bias = pair
        # Output channels come first, and last if there are as many filters as channels.
        axis = 3 if weights.ndim == 4 and weights.shape[0] == 1 != bias.size else 0
        others = tuple(each for each in range(weights.ndim) if each != axis)
        largest = np.abs(weights).max(axis=others, keepdims=True)
        scales = np.maximum(largest, np.float32(1e-6)) / np.float32(_MAX_WEIGHT)
        assert x.quantization is not None
        sums = np.float32(x.quantization.scale[0]) * scales.ravel()
        zeros = (0,) * scales.size
        return [
            self.writer.constant(
                np.rint(weights / scales),
                self.dtype,
                name=f"{name}/weights",
                quantization=Quantization(_numbers(scales), zeros, axis),
            ),
            self.writer.constant(
                np.rint(bias / sums),
                "int32",
                name=f"{name}/bias",
                quantization=Quantization(_numbers(sums), zeros),
            ),
        ]


def _range(moments: Moments, activation: str | None) -> tuple[float, float]:
    """Return the lowest and highest expected value of a result."""
    spread = _DEVIATIONS * math.sqrt(moments.variance)
    low, high = moments.mean - spread, moments.mean + spread
    if activation == "RELU6":
        return 0.0, 6.0
    return (0.0 if activation == "RELU" else min(low, 0.0)), max(high, 0.0)


def _quantization(low: float, high: float) -> Quantization:
    """Return a scale and a zero point for a range that includes 0."""
    scale = float(np.float32((high - low) / (_HIGHEST - _LOWEST)))
    zero = min(max(round(_LOWEST - low / scale), _LOWEST), _HIGHEST)
    return Quantization((scale,), (zero,))


def _numbers(array: Floats) -> tuple[float, ...]:
    return tuple(map(float, array.ravel()))
