"""Seeded random weights, with which an untrained network has activations in a normal range.

In a trained network, batch normalization controls the range of activations; a deployed model
contains it in the weights. Random weights must control the range, too. From the expected mean and
variance of a layer's input, the module computes weights and biases that give the layer's result the
moments expected by its activation. All arithmetic is on integers or correctly rounded, without a
math library or NumPy's distributions. The same key therefore gives the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

_FULL_SCALE = 1 << 15
_UNIFORM_VARIANCE = 1 / 3
_BIAS_SPREAD = 0.5
# A depthwise filter is its center tap plus noise on all taps: like trained filters (blurs, edges),
# it preserves each channel's signal instead of mixing it with adjacent pixels.
_CENTRE_TAP = 0.8
_NOISE_TAP = 0.5


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of the elements of a tensor."""

    mean: float
    variance: float

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.mean + other.mean, self.variance + other.variance)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.mean - other.mean, self.variance - other.variance)


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function, with the moments of its normal input and of its result.

    `suffix` is the suffix of the result tensor's name.
    """

    before: Moments
    after: Moments
    suffix: str


ACTIVATIONS = {
    "NONE": Activation(Moments(0.0, 1.0), Moments(0.0, 1.0), "BiasAdd"),
    "RELU": Activation(Moments(1.0, 4.0), Moments(1.395, 2.213), "Relu"),
    "RELU6": Activation(Moments(1.0, 4.0), Moments(1.391, 2.172), "Relu6"),
}

IMAGE = Moments(0.0, 0.3)
"""The moments of an image scaled to [-1, 1], similar to those of uniform noise."""


def dense(
    key: str, shape: tuple[int, ...], source: Moments, result: Moments
) -> tuple[Floats, Floats]:
    """Return weights of `shape` and the biases of a convolution or fully connected layer.

    Args:
        key: The seed of the random numbers.
        shape: Output channels first, then all dimensions that are summed over.
        source: Moments of the layer's input.
        result: The moments that the result should have.
    """
    taps = _uniform(f"{key}/weights", shape)
    window = tuple(range(1, len(shape)))
    if source.mean:
        # Otherwise a channel would mainly hold the mean of the input times the sum of its taps.
        taps -= taps.sum(axis=window, keepdims=True) // taps[0].size
    power = taps[0].size * _UNIFORM_VARIANCE * source.variance
    weights = _scaled(taps, math.sqrt(result.variance / power))
    return weights, _biases(key, shape[0], result.mean)


def depthwise(key: str, channels: int, source: Moments, result: Moments) -> tuple[Floats, Floats]:
    """Return weights `[1, 3, 3, channels]` and the biases of a depthwise convolution.

    The parameters have the same meaning as in `dense`.
    """
    taps = _uniform(f"{key}/weights", (1, 3, 3, channels)) // round(1 / _NOISE_TAP)
    taps[:, 1, 1, :] += round(_CENTRE_TAP * _FULL_SCALE)
    power = (_CENTRE_TAP**2 + 9 * _NOISE_TAP**2 * _UNIFORM_VARIANCE) * source.variance
    scale = math.sqrt(result.variance / power)
    offset = _scaled(taps.sum(axis=(0, 1, 2)), scale * source.mean)
    return _scaled(taps, scale), _biases(key, channels, result.mean) - offset


def _uniform(key: str, shape: tuple[int, ...]) -> Integers:
    """Return integers distributed uniformly over [-_FULL_SCALE, _FULL_SCALE)."""
    digest = hashlib.sha256(key.encode()).digest()
    stream = np.random.PCG64(int.from_bytes(digest[:16], "little"))
    count = math.prod(shape)
    words = np.asarray(stream.random_raw(-(-count // 4)), np.dtype("<u8"))
    return words.view("<i2")[:count].astype(np.int32).reshape(shape)


def _biases(key: str, channels: int, mean: float) -> Floats:
    return _scaled(_uniform(f"{key}/bias", (channels,)), _BIAS_SPREAD) + np.float32(mean)


def _scaled(integers: npt.NDArray[np.signedinteger], scale: float) -> Floats:
    return integers.astype(np.float32) * np.float32(scale / _FULL_SCALE)
