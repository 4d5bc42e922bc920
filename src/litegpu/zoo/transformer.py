"""Transformer layers, as sequences of the operations that converters write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.zoo import weights
from litegpu.zoo.layers import Net, Signal
from litegpu.zoo.weights import Moments
from litegpu.zoo.writer import TensorRef

_STANDARD = Moments(0.0, 1.0)
# Moments of functions of a normal distribution.
_GELU = Moments(0.282, 0.346)
_SWISH = Moments(0.207, 0.313)
_BRANCH = Moments(0.0, 0.5)
"""The moments of the values that a branch adds to the residual stream."""
_CONCENTRATION = math.e
"""Mean square of softmax weights for normal scores, relative to uniform weights."""


class TransformerNet(Net):
    """Adds layers on `[batch, tokens, channels]`, in addition to the layers on images."""

    def dense(
        self, x: Signal, units: int, name: str, result: Moments = _STANDARD, *, bias: bool = True
    ) -> Signal:
        """Add FULLY_CONNECTED on each token."""
        pair = weights.dense(f"{self.key}/{name}", (units, x.shape[-1]), x.moments, result)
        matrix, shift = self._parameters(x, name, pair)
        options = {"keep_num_dims": True}
        shape = (*x.shape[:-1], units)
        operands = [x.ref, matrix, *([shift] if bias else [])]
        return self._op(x, "FULLY_CONNECTED", operands, shape, name, result, options, version=5)

    def embedding(self, shape: tuple[int, ...], name: str, variance: float = 0.1) -> TensorRef:
        """Return a constant with the moments of a trained embedding."""
        pair = weights.dense(
            f"{self.key}/{name}", shape, _STANDARD, Moments(0.0, variance * math.prod(shape[1:]))
        )
        return self.writer.weights(pair[0], name=name)

    def layer_norm(self, x: Signal, name: str, epsilon: float, *, negated: bool) -> Signal:
        """Add a layer normalization.

        `negated`: as in Keras 3, with the mean negated; otherwise as in `tf.nn`, which subtracts
        its product with the factors from the shift.
        """
        channels = x.shape[-1]
        factor, shift = self._norm_parameters(name, channels, (1, 1) if negated else ())
        last = self.writer.constant([len(x.shape) - 1], "int32", name=f"{name}/axis")
        one = (*x.shape[:-1], 1)
        keep = {"keep_dims": True}
        mean = self._on(x, "MEAN", [x.ref, last], one, f"{name}/mean", keep)
        minus = self._on(mean, "NEG", [mean.ref], one, f"{name}/Neg") if negated else mean
        squares = [x.ref, mean.ref]
        different = self._on(x, "SQUARED_DIFFERENCE", squares, x.shape, f"{name}/difference")
        spread = self._on(x, "MEAN", [different.ref, last], one, f"{name}/variance", keep)
        small = self.writer.constant(epsilon, "float32", name=f"{name}/epsilon")
        spread = self._on(x, "ADD", [spread.ref, small], one, f"{name}/add")
        inverse = self._on(x, "RSQRT", [spread.ref], one, f"{name}/Rsqrt")
        scale = self._on(x, "MUL", [inverse.ref, factor], x.shape, f"{name}/mul")
        moved = self._on(x, "MUL", [minus.ref, scale.ref], x.shape, f"{name}/mul_mean")
        if negated:
            moved = self._on(x, "ADD", [moved.ref, shift], x.shape, f"{name}/shift")
        else:
            moved = self._on(x, "SUB", [shift, moved.ref], x.shape, f"{name}/sub")
        scaled = self._on(x, "MUL", [x.ref, scale.ref], x.shape, f"{name}/mul_input")
        last_sum = self._on(x, "ADD", [scaled.ref, moved.ref], x.shape, f"{name}/add_1")
        return replace(last_sum, moments=_STANDARD)

    def gelu(self, x: Signal, name: str) -> Signal:
        """Add GELU, the operation to which converters map every variant with erf or tanh."""
        return self._op(x, "GELU", [x.ref], x.shape, f"{name}/Gelu", _GELU, {"approximate": False})

    def swish(self, x: Signal, name: str) -> Signal:
        """Add LOGISTIC, and MUL of its result with `x` (swish)."""
        gate = self._on(x, "LOGISTIC", [x.ref], x.shape, f"{name}/Sigmoid")
        return self._op(x, "MUL", [x.ref, gate.ref], x.shape, f"{name}/mul", _SWISH)

    def scale(self, x: Signal, factor: float, name: str) -> Signal:
        """Add MUL by a number."""
        number = self.writer.constant(factor, "float32", name=f"{name}/y")
        moments = Moments(x.moments.mean * factor, x.moments.variance * factor**2)
        return self._op(x, "MUL", [x.ref, number], x.shape, name, moments)

    def transpose(self, x: Signal, order: Sequence[int], name: str) -> Signal:
        """Add TRANSPOSE."""
        permutation = self.writer.constant(order, "int32", name=f"{name}/perm")
        shape = tuple(x.shape[axis] for axis in order)
        return self._op(x, "TRANSPOSE", [x.ref, permutation], shape, name, x.moments)

    def first_token(self, x: Signal, name: str) -> Signal:
        """Add STRIDED_SLICE: `[batch, tokens, channels]` to `[batch, channels]`."""
        ends = ([0, 0, 0], [0, 1, 0], [1, 1, 1])
        operands = [self.writer.constant(end, "int32", name=f"{name}/{end}") for end in ends]
        options = {"begin_mask": 5, "end_mask": 5, "shrink_axis_mask": 2}
        shape = (x.shape[0], x.shape[2])
        return self._op(x, "STRIDED_SLICE", [x.ref, *operands], shape, name, x.moments, options)

    def with_constant(self, builtin: str, x: Signal, other: TensorRef, name: str) -> Signal:
        """Add an elementwise operation on a signal and an embedding, which may be broadcast."""
        return self._on(x, builtin, [x.ref, other], x.shape, name)

    def product(self, a: Signal, b: Signal, name: str, *, transposed: bool = False) -> Signal:
        """Add BATCH_MATMUL, whose second operand may be transposed (`adj_y`)."""
        columns = b.shape[-2] if transposed else b.shape[-1]
        options = {"adj_x": False, "adj_y": transposed}
        variance = a.shape[-1] * a.moments.variance * b.moments.variance
        shape = (*a.shape[:-1], columns)
        moments = Moments(0.0, variance)
        return self._op(a, "BATCH_MATMUL", [a.ref, b.ref], shape, name, moments, options)

    def attend(self, scores: Signal, values: Signal, name: str) -> Signal:
        """Add SOFTMAX of scores, and its product with the values."""
        shape, options = scores.shape, {"beta": 1.0}
        chances = self._on(scores, "SOFTMAX", [scores.ref], shape, f"{name}/Softmax", options)
        attended = self.product(chances, values, f"{name}/matmul_1")
        variance = min(_CONCENTRATION / shape[-1], 1.0) * values.moments.variance
        return replace(attended, moments=Moments(0.0, variance))

    def heads_of(self, x: Signal, heads: int, name: str, order: Sequence[int]) -> Signal:
        """Add RESHAPE to `[batch, tokens, heads, depth]`, and TRANSPOSE."""
        batch, tokens, channels = x.shape
        split = self.reshape(x, (batch, tokens, heads, channels // heads), f"{name}/Reshape")
        return self.transpose(split, order, f"{name}/transpose")

    def joined(self, x: Signal, name: str) -> Signal:
        """Add TRANSPOSE and RESHAPE of heads to `[batch, tokens, channels]`."""
        batch, heads, tokens, depth = x.shape
        together = self.transpose(x, (0, 2, 1, 3), f"{name}/transpose_3")
        return self.reshape(together, (batch, tokens, heads * depth), f"{name}/Reshape_3")

    def projected(self, x: Signal, name: str) -> Signal:
        """Add the FULLY_CONNECTED that ends a residual branch."""
        return self.dense(x, x.shape[-1], name, _BRANCH)

    def attention(self, x: Signal, heads: int, name: str, *, keras: bool = False) -> Signal:
        """Add self-attention of several heads.

        With `keras`, a TRANSPOSE transposes the keys, as in `keras.layers.MultiHeadAttention`.
        Otherwise, the BATCH_MATMUL transposes the keys.
        """
        depth = x.shape[-1] // heads
        split = (0, 2, 1, 3)
        query, key, value = (
            self.heads_of(
                self.dense(x, x.shape[-1], f"{name}/{part}"),
                heads,
                f"{name}/{part}",
                (0, 2, 3, 1) if keras and part == "key" else split,
            )
            for part in ("query", "key", "value")
        )
        scores = self.product(query, key, f"{name}/matmul", transposed=not keras)
        scores = self.scale(scores, depth**-0.5, f"{name}/scale")
        return self.projected(self.joined(self.attend(scores, value, name), name), f"{name}/dense")

    def mlp(self, x: Signal, hidden: int, name: str, *, swish: bool = False) -> Signal:
        """Add two FULLY_CONNECTED with GELU or swish between them."""
        inner = self.dense(x, hidden, f"{name}/fc1")
        activated = (self.swish if swish else self.gelu)(inner, f"{name}/fc1")
        return self.dense(activated, x.shape[-1], f"{name}/fc2", _BRANCH)

    def with_class_token(self, x: Signal, name: str) -> Signal:
        """Add CONCATENATION with a leading token, a constant repeated for each batch entry."""
        batch, tokens, channels = x.shape
        one = weights.dense(f"{self.key}/{name}", (channels, 1), _STANDARD, _STANDARD)[0]
        copies = np.tile(one.reshape(1, 1, channels), (batch, 1, 1))
        refs = [self.writer.weights(copies, name=name), x.ref]
        shape = (batch, tokens + 1, channels)
        return self._op(x, "CONCATENATION", refs, shape, f"{name}/concat", x.moments, {"axis": 1})

    def spectrogram(self, batch: int, bins: int, frames: int, name: str) -> Signal:
        """Add the input `[batch, bins, frames]` with values in [-1, 1]."""
        return self._input((batch, bins, frames), name, weights.IMAGE)

    def conv_1d(self, x: Signal, channels: int, kernel: int, stride: int, name: str) -> Signal:
        """Add CONV_2D along the tokens, between two RESHAPEs."""
        batch, tokens, depth = x.shape
        pair = weights.dense(
            f"{self.key}/{name}", (channels, 1, kernel, depth), x.moments, _STANDARD
        )
        image = self.reshape(x, (batch, 1, tokens, depth), f"{name}/ExpandDims")
        options = {"padding": "SAME", "stride_h": 1, "stride_w": stride}
        operands = [image.ref, *self._parameters(x, name, pair)]
        shape = (batch, 1, -(-tokens // stride), channels)
        row = self._op(x, "CONV_2D", operands, shape, f"{name}/BiasAdd", _STANDARD, options)
        return self.reshape(row, (batch, *shape[2:]), f"{name}/Squeeze")

    def _on(
        self,
        x: Signal,
        builtin: str,
        operands: Sequence[TensorRef],
        shape: tuple[int, ...],
        name: str,
        options: dict[str, bool] | dict[str, float] | None = None,
    ) -> Signal:
        """Add an operation inside a layer, whose moments are not needed."""
        return self._op(x, builtin, operands, shape, name, x.moments, options)

    def _norm_parameters(
        self, name: str, channels: int, ones: tuple[int, ...]
    ) -> tuple[TensorRef, TensorRef]:
        """Return the scale factors (near 1) and shifts (near 0) of a normalization."""
        key, small = f"{self.key}/{name}", Moments(0.0, 0.01)
        columns = weights.dense(key, (2 * channels, 1), _STANDARD, small)[0].reshape(2, -1)
        factor, shift = (column.reshape(*ones, channels) for column in columns)
        return (
            self.writer.weights(1 + factor, name=f"{name}/gamma"),
            self.writer.weights(shift, name=f"{name}/beta"),
        )
