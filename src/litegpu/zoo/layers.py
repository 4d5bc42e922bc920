"""Layers of the zoo's networks: adds operations with their weights, shapes and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from litegpu.graph.ir import Quantization
from litegpu.zoo import weights
from litegpu.zoo.weights import ACTIVATIONS, Floats, Moments
from litegpu.zoo.writer import ModelWriter, TensorRef

# How pooling changes a signal's moments, measured on these networks: averaging over a whole map
# keeps the differences between channels; the maximum of a window after RELU is larger and varies
# less.
_AVERAGED_VARIANCE = 0.25
_MAXIMUM_MEAN = 1.3
_PROBABILITIES = Moments(0.5, 0.25)


@dataclass(frozen=True, slots=True)
class Signal:
    """A tensor of the network and the expected moments of its elements."""

    ref: TensorRef
    moments: Moments
    quantization: Quantization | None = None
    """The quantization of the tensor, if it is quantized."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, `[N, H, W, C]` for all but the last layers."""
        return self.ref.shape


class Net:
    """Adds layers to a `ModelWriter`.

    Args:
        key: The seed of all weights, together with the names of their layers.
        writer: The writer to which layers are added.
    """

    dtype: ClassVar[str] = "float32"
    """Element type of the tensors between layers."""

    def __init__(self, key: str, writer: ModelWriter) -> None:
        self.key = key
        self.writer = writer

    def image(self, batch: int, size: int, name: str) -> Signal:
        """Add the input `[batch, size, size, 3]` with values in [-1, 1]."""
        return self._input((batch, size, size, 3), name, weights.IMAGE)

    def conv(
        self,
        x: Signal,
        channels: int,
        name: str,
        *,
        kernel: int = 1,
        stride: int = 1,
        padding: str = "SAME",
        activation: str = "NONE",
        result: Moments | None = None,
    ) -> Signal:
        """Add CONV_2D with a square kernel.

        `result` overrides the moments of the layer's result before the activation.
        """
        act = ACTIVATIONS[activation]
        shape = (channels, kernel, kernel, x.shape[3])
        pair = weights.dense(f"{self.key}/{name}", shape, x.moments, result or act.before)
        return self._op(
            x,
            "CONV_2D",
            [x.ref, *self._parameters(x, name, pair)],
            (x.shape[0], *_extents(x, kernel, stride, padding), channels),
            f"{name}/{act.suffix}",
            result if result and activation == "NONE" else act.after,
            {**_window(stride, padding), **_dilation(1), "fused_activation_function": activation},
        )

    def depthwise(
        self,
        x: Signal,
        name: str,
        *,
        stride: int = 1,
        dilation: int = 1,
        activation: str = "RELU6",
    ) -> Signal:
        """Add a 3x3 DEPTHWISE_CONV_2D with padding SAME and multiplier 1."""
        act = ACTIVATIONS[activation]
        channels = x.shape[3]
        pair = weights.depthwise(f"{self.key}/{name}", channels, x.moments, act.before)
        return self._op(
            x,
            "DEPTHWISE_CONV_2D",
            [x.ref, *self._parameters(x, name, pair)],
            (x.shape[0], *_extents(x, 3, stride, "SAME"), channels),
            f"{name}/{act.suffix}",
            act.after,
            {
                **_window(stride, "SAME"),
                **_dilation(dilation),
                "depth_multiplier": 1,
                "fused_activation_function": activation,
            },
            version=1 if dilation == 1 else 2,
        )

    def fully_connected(self, x: Signal, units: int, name: str, result: Moments) -> Signal:
        """Add FULLY_CONNECTED: `[N, C]` to `[N, units]`."""
        pair = weights.dense(f"{self.key}/{name}", (units, x.shape[1]), x.moments, result)
        operands = [x.ref, *self._parameters(x, name, pair)]
        shape = (x.shape[0], units)
        return self._op(x, "FULLY_CONNECTED", operands, shape, f"{name}/BiasAdd", result)

    def add(self, a: Signal, b: Signal, name: str, activation: str = "NONE") -> Signal:
        """Add ADD of two signals of one shape."""
        moments = a.moments + b.moments if activation == "NONE" else ACTIVATIONS[activation].after
        options = {"fused_activation_function": activation}
        return self._op(a, "ADD", [a.ref, b.ref], a.shape, name, moments, options)

    def average_pool(self, x: Signal, name: str) -> Signal:
        """Add AVERAGE_POOL_2D over the whole feature map: `[N, H, W, C]` to `[N, 1, 1, C]`."""
        batch, height, width, channels = x.shape
        options = {
            "padding": "VALID",
            "stride_h": height,
            "stride_w": width,
            "filter_height": height,
            "filter_width": width,
        }
        shape = (batch, 1, 1, channels)
        return self._op(x, "AVERAGE_POOL_2D", [x.ref], shape, name, _averaged(x), options)

    def mean(self, x: Signal, name: str) -> Signal:
        """Add MEAN over the feature map: `[N, H, W, C]` to `[N, C]`."""
        axes = self.writer.constant([1, 2], "int32", name=f"{name}/reduction_indices")
        shape = (x.shape[0], x.shape[3])
        return self._op(x, "MEAN", [x.ref, axes], shape, name, _averaged(x), {"keep_dims": False})

    def max_pool(self, x: Signal, kernel: int, stride: int, name: str) -> Signal:
        """Add MAX_POOL_2D without padding, after a RELU."""
        options = {
            **_window(stride, "VALID"),
            "filter_height": kernel,
            "filter_width": kernel,
        }
        shape = (x.shape[0], *_extents(x, kernel, stride, "VALID"), x.shape[3])
        moments = Moments(x.moments.mean * _MAXIMUM_MEAN, x.moments.variance)
        return self._op(x, "MAX_POOL_2D", [x.ref], shape, name, moments, options)

    def pad(self, x: Signal, amount: int, name: str) -> Signal:
        """Add PAD with `amount` zeros on each side of the feature map."""
        margins = [[0, 0], [amount, amount], [amount, amount], [0, 0]]
        paddings = self.writer.constant(margins, "int32", name=f"{name}/paddings")
        batch, height, width, channels = x.shape
        shape = (batch, height + 2 * amount, width + 2 * amount, channels)
        return self._op(x, "PAD", [x.ref, paddings], shape, name, x.moments)

    def reshape(self, x: Signal, shape: tuple[int, ...], name: str) -> Signal:
        """Add RESHAPE."""
        target = self.writer.constant(shape, "int32", name=f"{name}/shape")
        return self._op(x, "RESHAPE", [x.ref, target], shape, name, x.moments, {"new_shape": shape})

    def resize(self, x: Signal, size: int, name: str) -> Signal:
        """Add RESIZE_BILINEAR with aligned corners to a feature map of `size` x `size`."""
        target = self.writer.constant([size, size], "int32", name=f"{name}/size")
        shape = (x.shape[0], size, size, x.shape[3])
        options = {"align_corners": True}
        return self._op(x, "RESIZE_BILINEAR", [x.ref, target], shape, name, x.moments, options)

    def concatenate(self, parts: Sequence[Signal], axis: int, name: str) -> Signal:
        """Add CONCATENATION of signals with the moments of the first."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        refs = [part.ref for part in parts]
        moments = parts[0].moments
        return self._op(
            parts[0], "CONCATENATION", refs, tuple(shape), name, moments, {"axis": axis}
        )

    def softmax(self, x: Signal, name: str) -> TensorRef:
        """Add SOFTMAX over the last dimension."""
        return self._op(x, "SOFTMAX", [x.ref], x.shape, name, _PROBABILITIES, {"beta": 1.0}).ref

    def logistic(self, x: Signal, name: str) -> Signal:
        """Add LOGISTIC."""
        return self._op(x, "LOGISTIC", [x.ref], x.shape, name, _PROBABILITIES)

    def real(self, x: Signal) -> TensorRef:
        """Return a signal as float32, the input type of custom operations."""
        return x.ref

    def _input(self, shape: tuple[int, ...], name: str, moments: Moments) -> Signal:
        return Signal(self.writer.input(shape, name=name), moments)

    def _op(
        self,
        x: Signal,
        builtin: str,
        inputs: Sequence[TensorRef],
        shape: tuple[int, ...],
        name: str,
        moments: Moments,
        options: Mapping[str, Any] | None = None,
        version: int = 1,
    ) -> Signal:
        """Add an operation; `x` is one of its `inputs`, `moments` are the moments of its result."""
        output_quantization = self._quantization(x, builtin, moments, options or {})
        ref = self.writer.op(
            builtin,
            inputs,
            [shape],
            options=options,
            version=self._version(builtin, version),
            dtype=self.dtype,
            name=name,
            quantization=output_quantization,
        )
        return Signal(ref, moments, output_quantization)

    def _version(self, builtin: str, version: int) -> int:
        """Return the version of an operation, whose float variant has `version`."""
        return version

    def _quantization(
        self, x: Signal, builtin: str, moments: Moments, options: Mapping[str, Any]
    ) -> Quantization | None:
        """Return the quantization of the result of an operation on `x`."""
        return None

    def _parameters(self, x: Signal, name: str, pair: tuple[Floats, Floats]) -> list[TensorRef]:
        """Add the weights and the biases of an operation on `x`."""
        names = (f"{name}/weights", f"{name}/bias")
        return [self.writer.weights(data, name=n) for data, n in zip(pair, names, strict=True)]


def _averaged(x: Signal) -> Moments:
    return Moments(x.moments.mean, x.moments.variance * _AVERAGED_VARIANCE)


def _extents(x: Signal, kernel: int, stride: int, padding: str) -> list[int]:
    """Return height and width of the result of a sliding window."""
    covered = kernel - 1 if padding == "VALID" else 0
    return [-(-(size - covered) // stride) for size in x.shape[1:3]]


def _window(stride: int, padding: str) -> dict[str, int | str]:
    return {"padding": padding, "stride_h": stride, "stride_w": stride}


def _dilation(factor: int) -> dict[str, int]:
    return {"dilation_h_factor": factor, "dilation_w_factor": factor}
