"""Cases of several operations that the passes fuse, move or remove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cases.base import Case, Range, Shape, Sheet
from litegpu.zoo.writer import TensorRef

Write = Callable[[Sheet, int], None]
_CHAINS: dict[str, Write] = {}


@dataclass(frozen=True, kw_only=True)
class Chain(Case):
    """A small graph of the table below, with that many channels where it leaves a choice."""

    graph: str
    channels: int = 8

    def write(self, sheet: Sheet) -> None:
        """Write the graph."""
        _CHAINS[self.graph](sheet, self.channels)


def _chain(write: Write) -> Write:
    _CHAINS[write.__name__] = write
    return write


def _conv(
    sheet: Sheet,
    source: TensorRef,
    shape: Shape,
    activation: str = "NONE",
    padding: str = "SAME",
    stride: int = 1,
) -> TensorRef:
    """Add a convolution with weights of `shape` [O, H, W, I] that keeps values in range."""
    spread = 1.5 / (shape[1] * shape[2] * shape[3]) ** 0.5
    weights = sheet.weights(shape, Range(-spread, spread))
    bias = sheet.weights(shape[:1], Range(-0.5, 0.5))
    options = {"padding": padding, "stride_h": stride, "stride_w": stride}
    return sheet.fused("CONV_2D", [source, weights, bias], activation, options)


def _depthwise(sheet: Sheet, source: TensorRef, channels: int, padding: str) -> TensorRef:
    weights, bias = sheet.weights((1, 3, 3, channels)), sheet.weights((channels,))
    options = {"padding": padding, "stride_h": 1, "stride_w": 1, "depth_multiplier": 1}
    return sheet.op("DEPTHWISE_CONV_2D", [source, weights, bias], options)


def _pool(sheet: Sheet, source: TensorRef, size: int = 2, padding: str = "SAME") -> TensorRef:
    sizes = dict.fromkeys(("stride_h", "stride_w", "filter_height", "filter_width"), size)
    return sheet.op("MAX_POOL_2D", [source], {"padding": padding, **sizes})


def _pad(sheet: Sheet, source: TensorRef, *pads: tuple[int, int]) -> TensorRef:
    return sheet.op("PAD", [source, sheet.constant(pads, "int32")])


def _reshape(sheet: Sheet, source: TensorRef, *shape: int) -> TensorRef:
    return sheet.op("RESHAPE", [source, sheet.constant(shape, "int32")])


def _concat(sheet: Sheet, *parts: TensorRef, axis: int = 3) -> TensorRef:
    return sheet.op("CONCATENATION", parts, {"axis": axis})


def _slice(
    sheet: Sheet, source: TensorRef, begin: tuple[int, ...], end: tuple[int, ...], shrink: int = 0
) -> TensorRef:
    bounds = [sheet.constant(part, "int32") for part in (begin, end, (1,) * len(begin))]
    return sheet.op("STRIDED_SLICE", [source, *bounds], {"shrink_axis_mask": shrink})


# Residuals and element-wise steps


@_chain
def residual_with_prelu(sheet: Sheet, c: int) -> None:
    source = sheet.input((2, 5, 4, c))
    result = _conv(sheet, source, (c, 3, 3, c))
    result = sheet.op("PRELU", [result, sheet.weights((1, 1, c), Range(-0.5, 0.5))])
    sheet.output(sheet.fused("ADD", [result, source], "RELU6"))


@_chain
def residual_first(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, c))
    sheet.output(sheet.op("SUB", [source, _conv(sheet, source, (c, 1, 1, c), "RELU")]))


@_chain
def residuals_in_a_row(sheet: Sheet, c: int) -> None:
    value = _conv(sheet, sheet.input((1, 6, 5, 3)), (c, 3, 3, 3), "RELU6")
    for _ in range(5):
        value = sheet.op("ADD", [value, _conv(sheet, value, (c, 3, 3, c))])
    sheet.output(value)


@_chain
def sum_of_two_convolutions(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, 6))
    first, second = (_conv(sheet, source, (c, k, k, 6)) for k in (1, 3))
    sheet.output(sheet.fused("SUB", [first, second], "RELU"))


@_chain
def gated_by_itself(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((1, 5, 4, c)), (c, 1, 1, c))
    sheet.output(sheet.op("MUL", [result, sheet.op("LOGISTIC", [result])]))


@_chain
def gated_by_pooled_channels(sheet: Sheet, c: int) -> None:
    source = sheet.input((2, 6, 6, c))
    gate = _conv(sheet, _pool(sheet, source, 6), (c, 1, 1, c))
    sheet.output(sheet.op("MUL", [source, sheet.op("LOGISTIC", [gate])]))


@_chain
def chain_of_five_steps(sheet: Sheet, c: int) -> None:
    value = sheet.input((2, 5, 4, c))
    value = sheet.op("MUL", [value, sheet.weights((c,))])
    value = sheet.op("SUB", [sheet.weights(()), value])
    value = sheet.op("TANH", [value])
    value = sheet.fused("ADD", [value, sheet.weights((5, 1, 1))], "RELU")
    sheet.output(sheet.op("SQUARED_DIFFERENCE", [value, sheet.weights((1, 5, 4, c))]))


@_chain
def steps_that_widen(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((2, 5, 4, 6)), (1, 1, 1, 6))
    wide = sheet.op("MUL", [result, sheet.weights((c,))])
    sheet.output(sheet.op("ADD", [wide, sheet.input((2, 1, 1, c))]))


@_chain
def operands_of_a_convolution(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((2, 5, 4, 6)), (c, 3, 3, 6))
    result = sheet.op("MUL", [result, sheet.input((2, 1, 1, c))])
    result = sheet.op("ADD", [result, sheet.weights((5, 4, c))])
    sheet.output(sheet.op("MAXIMUM", [sheet.input((5, 1, 1)), result]))


@_chain
def two_readers_of_one_convolution(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((1, 5, 4, c)), (c, 3, 3, c))
    sheet.output(sheet.op("RELU", [result]), sheet.op("NEG", [result]))


@_chain
def steps_after_a_transposed_convolution(sheet: Sheet, c: int) -> None:
    size = sheet.constant((1, 8, 6, c), "int32")
    options = {"padding": "SAME", "stride_h": 2, "stride_w": 2}
    result = sheet.op(
        "TRANSPOSE_CONV", [size, sheet.weights((c, 3, 3, 5)), sheet.input((1, 4, 3, 5))], options
    )
    sheet.output(sheet.fused("ADD", [result, sheet.input((1, 8, 6, c))], "RELU"))


@_chain
def transposed_convolution_into_a_concat(sheet: Sheet, c: int) -> None:
    """Write sums long enough for tensor cores, with steps that are the same for all pixels."""
    size = sheet.constant((2, 7, 6, c + 3), "int32")
    weights = sheet.weights((c + 3, 3, 3, 4 * c), Range(-0.2, 0.2))
    options = {"padding": "SAME", "stride_h": 2, "stride_w": 2}
    source = sheet.input((2, 4, 3, 4 * c))
    result = sheet.op("TRANSPOSE_CONV", [size, weights, source], options)
    result = sheet.op("MUL", [result, sheet.input((2, 1, 1, c + 3))])
    result = sheet.fused("ADD", [result, sheet.weights((c + 3,))], "RELU")
    sheet.output(_concat(sheet, sheet.op("NEG", [sheet.input((2, 7, 6, c))]), result))


@_chain
def sum_of_many(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 3, 2, c))
    value = source
    for _ in range(9):
        value = sheet.op("ADD", [value, sheet.input((1, 3, 2, c), Range(-0.5, 0.5))])
    sheet.output(sheet.op("MUL", [value, source]))


# Padding


@_chain
def pad_before_convolution(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((2, 6, 5, c)), (0, 0), (0, 1), (2, 1), (0, 0))
    sheet.output(_conv(sheet, padded, (6, 3, 3, c), "RELU", "VALID", stride=2))


@_chain
def pad_before_padded_convolution(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((1, 5, 4, c)), (0, 0), (1, 2), (0, 1), (0, 0))
    sheet.output(_conv(sheet, padded, (5, 3, 3, c)))


@_chain
def pad_before_depthwise(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((1, 5, 4, c)), (0, 0), (1, 1), (1, 1), (0, 0))
    sheet.output(_depthwise(sheet, padded, c, "VALID"))


@_chain
def pad_before_computed_weights(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((1, 5, 4, c)), (0, 0), (1, 1), (1, 1), (0, 0))
    options = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
    weights = sheet.operands((5, 3, 3, c), "computed", "computed")
    sheet.output(sheet.op("CONV_2D", [padded, *weights], options))


@_chain
def pad_before_two_convolutions(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((1, 5, 4, c)), (0, 0), (1, 1), (1, 1), (0, 0))
    sheet.output(_conv(sheet, padded, (4, 3, 3, c), padding="VALID"))
    sheet.output(_depthwise(sheet, padded, c, "VALID"))


@_chain
def pad_before_convolution_and_pool(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, c), Range(-2.0, -1.0))
    padded = _pad(sheet, source, (0, 0), (1, 1), (1, 1), (0, 0))
    sheet.output(_conv(sheet, padded, (4, 3, 3, c), padding="VALID"), _pool(sheet, padded))


@_chain
def pad_that_is_an_output(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((1, 5, 4, c)), (0, 0), (1, 1), (1, 1), (0, 0))
    sheet.output(padded, _conv(sheet, padded, (4, 3, 3, c), padding="VALID"))


@_chain
def channel_pad_before_convolution(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((1, 5, 4, c)), (0, 0), (1, 1), (1, 1), (0, 3))
    sheet.output(_conv(sheet, padded, (4, 3, 3, c + 3), padding="VALID"))


@_chain
def channel_pad_into_sum(sheet: Sheet, c: int) -> None:
    """Write the residual block of BlazeFace, whose channels grow."""
    source = sheet.input((1, 6, 4, c))
    result = _conv(sheet, _depthwise(sheet, source, c, "SAME"), (c + 4, 1, 1, c), stride=2)
    padded = _pad(sheet, _pool(sheet, source), (0, 0), (0, 0), (0, 0), (0, 4))
    sheet.output(sheet.fused("ADD", [result, padded], "RELU"))


@_chain
def channel_pad_first_in_difference(sheet: Sheet, c: int) -> None:
    source = sheet.input((2, 5, 4, c))
    result = _conv(sheet, source, (c + 3, 1, 1, c))
    padded = _pad(sheet, source, (0, 0), (0, 0), (0, 0), (0, 3))
    sheet.output(sheet.op("SUB", [padded, result]))


@_chain
def channel_pad_of_a_single_channel(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, 1))
    result = _conv(sheet, source, (c, 3, 3, 1))
    padded = _pad(sheet, source, (0, 0), (0, 0), (0, 0), (0, c - 1))
    sheet.output(sheet.op("ADD", [result, padded]))


@_chain
def channel_pad_twice_read(sheet: Sheet, c: int) -> None:
    padded = _pad(sheet, sheet.input((1, 5, 4, c)), (0, 0), (0, 0), (0, 0), (0, 3))
    sheet.output(sheet.op("ADD", [padded, padded]), sheet.op("COS", [padded]))


# Views and concatenations


@_chain
def detection_head(sheet: Sheet, c: int) -> None:
    """Write a detector's head: scores of two scales in one list, then their probabilities."""
    first, second = sheet.input((1, 4, 3, c)), sheet.input((1, 2, 2, c))
    parts = [
        _reshape(sheet, _conv(sheet, first, (3 * 7, 1, 1, c)), 1, 36, 7),
        _reshape(sheet, _conv(sheet, second, (6 * 7, 1, 1, c)), 1, 24, 7),
    ]
    sheet.output(sheet.op("LOGISTIC", [_concat(sheet, *parts, axis=1)]))


@_chain
def detection_head_of_a_batch(sheet: Sheet, c: int) -> None:
    sources = [sheet.input((2, 4, 3, c)), sheet.input((2, 2, 1, c))]
    parts = [
        _reshape(sheet, _conv(sheet, source, (2 * c, 1, 1, c)), 2, -1, c) for source in sources
    ]
    sheet.output(_concat(sheet, *parts, axis=1))


@_chain
def boxes_to_output(sheet: Sheet, c: int) -> None:
    first, second = sheet.input((1, 4, 3, c)), sheet.input((1, 2, 2, c))
    parts = [
        _reshape(sheet, _conv(sheet, first, (3 * 4, 1, 1, c)), 1, 36, 1, 4),
        _reshape(sheet, _conv(sheet, second, (2 * 4, 3, 3, c)), 1, 8, 1, 4),
    ]
    sheet.output(_concat(sheet, *parts, axis=1))


@_chain
def branches(sheet: Sheet, c: int) -> None:
    source = sheet.input((2, 5, 4, c))
    parts = [_conv(sheet, source, (c, k, k, c), "RELU") for k in (1, 3, 5)]
    sheet.output(_conv(sheet, _concat(sheet, *parts, source), (6, 1, 1, 4 * c)))


@_chain
def concat_of_concat(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, c))
    inner = _concat(sheet, _conv(sheet, source, (c, 1, 1, c)), sheet.op("NEG", [source]))
    sheet.output(_concat(sheet, inner, _conv(sheet, source, (4, 3, 3, c)), inner))


@_chain
def steps_after_concat(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, c))
    joined = _concat(sheet, _conv(sheet, source, (c, 1, 1, c)), _conv(sheet, source, (c, 3, 3, c)))
    scaled = sheet.op("MUL", [joined, sheet.constant(0.25)])
    sheet.output(sheet.op("COS", [sheet.op("ADD", [scaled, sheet.constant([1.5])])]))


@_chain
def softmax_of_reshaped(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((1, 4, 3, 6)), (2 * c, 1, 1, 6))
    sheet.output(sheet.op("SOFTMAX", [_reshape(sheet, result, 24, c)], {"beta": 1.0}))


@_chain
def classifier(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((2, 4, 3, 3)), (c, 3, 3, 3), "RELU6", stride=2)
    weights = [sheet.weights((9, 4 * c), Range(-0.3, 0.3)), sheet.weights((9,))]
    scores = sheet.fused("FULLY_CONNECTED", [_reshape(sheet, result, 2, -1), *weights], "NONE")
    sheet.output(sheet.op("SOFTMAX", [scores], {"beta": 1.0}))


@_chain
def reshapes_alone(sheet: Sheet, c: int) -> None:
    source = sheet.input((2, 3, 2, c))
    once = _reshape(sheet, source, 6, 2 * c)
    sheet.output(once, _reshape(sheet, once, 12 * c), _reshape(sheet, source, 2, 3, 2, c))


@_chain
def outputs_that_are_read(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((1, 5, 4, c)), (c, 3, 3, c))
    flat = _reshape(sheet, result, 20, c)
    sheet.output(result, flat, _conv(sheet, result, (6, 1, 1, c), "RELU"), sheet.op("NEG", [flat]))


@_chain
def output_inside_a_concat(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, c))
    result = _conv(sheet, source, (c, 1, 1, c))
    sheet.output(result, _concat(sheet, result, source), _concat(sheet, source, result, axis=2))


@_chain
def input_twice_in_a_concat(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, c))
    sheet.output(_concat(sheet, source, source), _reshape(sheet, source, 4, 5, c))


@_chain
def slices_exchanged(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 5, 4, c))
    first = _slice(sheet, source, (0, 0, 0, 0), (1, 5, 4, 3))
    second = _slice(sheet, source, (0, 0, 0, 3), (1, 5, 4, c))
    joined = _concat(sheet, second, first)
    sheet.output(_conv(sheet, joined, (4, 1, 1, c)), sheet.op("EXP", [first]))


@_chain
def row_of_a_slice(sheet: Sheet, c: int) -> None:
    result = _conv(sheet, sheet.input((2, 5, 4, c)), (c, 1, 1, c))
    row = _slice(sheet, result, (0, 2, 0, 0), (2, 3, 4, c), shrink=0b10)
    sheet.output(sheet.op("ADD", [row, sheet.weights((4, 1))]))


@_chain
def resized_and_joined(sheet: Sheet, c: int) -> None:
    source = sheet.input((1, 6, 4, c))
    size = sheet.constant((6, 4), "int32")
    pooled = _conv(sheet, _pool(sheet, source), (c, 1, 1, c), "RELU")
    options = {"align_corners": True, "half_pixel_centers": False}
    resized = sheet.op("RESIZE_BILINEAR", [pooled, size], options)
    sheet.output(_conv(sheet, _concat(sheet, resized, source), (5, 1, 1, 2 * c)))


@_chain
def weights_shared_by_two(sheet: Sheet, c: int) -> None:
    weights, bias = sheet.weights((c, 3, 3, c), half=True), sheet.weights((c,), half=True)
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    for shape in ((1, 5, 4, c), (2, 3, 3, c)):
        inputs = [sheet.input(shape, Range(-0.3, 0.3)), weights, bias]
        sheet.output(sheet.fused("CONV_2D", inputs, "RELU", options))


@_chain
def input_that_nobody_reads(sheet: Sheet, c: int) -> None:
    sheet.input((1, 2, 2, c))
    sheet.output(sheet.op("COS", [sheet.input((1, 5, 4, c))]))


CASES: tuple[Case, ...] = tuple(
    Chain(graph=name, channels=channels) for name in _CHAINS for channels in (8, 5)
)
