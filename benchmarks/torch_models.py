"""Rebuilds a float TensorFlow Lite model in PyTorch, from the standard layers of torch.nn.

Values of four dimensions are NCHW inside, in the memory format channels_last, so that going from
and to the NHWC of TensorFlow Lite moves no data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.common.window import output_shape, window_of

_AXES = {0: 0, 1: 2, 2: 3, 3: 1}
"""Where a dimension of NHWC is in NCHW."""

_ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "relu_n1_to_1": nn.Hardtanh,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
_NOT_NEGATIVE = ("relu", "relu6", "sigmoid")

Margins = tuple[int, int, int, int]
"""Left, right, top, bottom."""
_NO_MARGINS: Margins = (0, 0, 0, 0)


class NotExpressibleError(ValueError):
    """A model holds something that the converter has no PyTorch layer for."""


class TorchModel(nn.Module):
    """A graph as PyTorch layers; called with and returning tensors shaped as in the .tflite file.

    Args:
        graph: of a float model, with its inputs and outputs.
        symmetric: pad by the same amount on both sides where SAME asks for one pixel more on one
            of them. No separate padding step is then needed, as in the networks of torchvision,
            but the results are those of another network. `changed` tells whether this made a
            difference.

    Raises NotExpressibleError, which names the operation.
    """

    def __init__(self, graph: Graph, symmetric: bool = False) -> None:
        super().__init__()
        self._graph, self._symmetric = graph, symmetric
        self.changed = False
        graph, self._margins = _without_pads(graph)
        self._inputs, self._outputs = graph.inputs, graph.outputs
        for v in graph.outputs:
            if graph.values[v].is_constant:
                raise NotExpressibleError(f"Output '{graph.values[v].name}' is a constant.")
        self._steps: list[tuple[tuple[int, ...], int]] = []
        self.layers = nn.ModuleList()
        for node in graph.nodes:
            if not graph.values[node.outputs[0]].is_constant:
                self._add(node)
        del self._graph

    def _add(self, node: Node) -> None:
        build = _BUILDERS.get(node.op)
        if build is None:
            raise NotExpressibleError(f"{node.op} (node {node.index}) has no PyTorch layer here.")
        for v in (*node.operands, *node.outputs):
            if self._graph.values[v].quantization is not None:
                raise NotExpressibleError(f"{node.op} (node {node.index}) is quantized.")
            if len(self._graph.values[v].shape) > 4:
                raise NotExpressibleError(f"{node.op} (node {node.index}) has over 4 dimensions.")
        layer, operands = build(_Site(self._graph, node, self))
        self.layers.append(layer)
        self._steps.append((tuple(operands), node.outputs[0]))

    def margins(self, value: int) -> tuple[int, Margins]:
        """Return the value that PAD was applied to, and its margins."""
        return self._margins.get(value, (value, _NO_MARGINS))

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run on one tensor per input; those of four dimensions are [N, H, W, C]."""
        found = {v: _inside(array) for v, array in zip(self._inputs, arrays, strict=True)}
        for layer, (operands, result) in zip(self.layers, self._steps, strict=True):
            found[result] = layer(*(found[v] for v in operands))
        return tuple(_outside(found[v]) for v in self._outputs)


def _inside(array: torch.Tensor) -> torch.Tensor:
    return array.permute(0, 3, 1, 2) if array.dim() == 4 else array


def _outside(array: torch.Tensor) -> torch.Tensor:
    return array.permute(0, 2, 3, 1).contiguous() if array.dim() == 4 else array.contiguous()


def _without_pads(graph: Graph) -> tuple[Graph, dict[int, tuple[int, Margins]]]:
    """Take out each PAD whose only reader can pad by itself, as a network in PyTorch would.

    Returns the rest, and the source and margins for each result of such a PAD.
    """
    producers, consumers = graph.producers(), graph.consumers()
    margins = {}
    for node in graph.nodes:
        readers = consumers.get(node.outputs[0], [])
        if node.op != "PAD" or len(readers) != 1 or node.outputs[0] in graph.outputs:
            continue
        reader, widths = readers[0], graph.values[node.inputs[1]].data
        if widths is None or widths.shape != (4, 2) or widths[[0, 3]].any() or (widths < 0).any():
            continue
        source = producers.get(node.inputs[0])
        clipped = source is not None and source.params.get("activation") in _NOT_NEGATIVE
        if reader.params.get("padding") == "valid" and (
            reader.op in ("CONV_2D", "DEPTHWISE_CONV_2D")
            # A maximum pads with -infinity, which is the same as 0 for what is never negative.
            or (reader.op == "MAX_POOL_2D" and clipped)
        ):
            (top, bottom), (left, right) = widths[1:3].tolist()
            margins[node.outputs[0]] = (node.inputs[0], (left, right, top, bottom))
    nodes = tuple(node for node in graph.nodes if node.outputs[0] not in margins)
    return replace(graph, nodes=nodes), margins


@dataclass(frozen=True, slots=True)
class _Site:
    """A node where it stands, for the builders."""

    graph: Graph
    node: Node
    model: TorchModel

    def shape(self, position: int) -> tuple[int, ...]:
        return self.graph.values[self.node.inputs[position]].shape

    def data(self, position: int) -> Any:
        """Return the constant at a position; None for an absent one. Raises when it is computed."""
        if position >= len(self.node.inputs) or self.node.inputs[position] == ABSENT:
            return None
        data = self.graph.values[self.node.inputs[position]].data
        if data is None:
            raise NotExpressibleError(f"{self.node.op} with computed input {position}.")
        return data

    def activation(self) -> nn.Module:
        name = self.node.params.get("activation", "none")
        if name not in _ACTIVATIONS:
            raise NotExpressibleError(f"{self.node.op} with the activation {name}.")
        return _ACTIVATIONS[name]()

    def dim(self, axis: int, rank: int) -> int:
        """Return where an axis of the .tflite file is here."""
        return _AXES[axis % 4] if rank == 4 else axis % rank

    def window(self, kernel: tuple[int, int]) -> tuple[int, Margins, Any]:
        """Return the source, the margins and the window that slides over it."""
        source, (left, right, top, bottom) = self.model.margins(self.node.inputs[0])
        _, height, width, _ = self.shape(0)
        view = window_of(self.node.params, kernel, (height, width))
        if self.node.params["padding"] == "same":
            sizes = output_shape(self.node.params, kernel, (height, width))
            ends = [
                max((out - 1) * stride + (taps - 1) * dilation + 1 - size - lead, 0)
                for out, stride, taps, dilation, size, lead in zip(
                    sizes,
                    view.stride,
                    kernel,
                    view.dilation,
                    (height, width),
                    view.pads,
                    strict=True,
                )
            ]
            left, right, top, bottom = view.pads[1], ends[1], view.pads[0], ends[0]
            if self.model._symmetric and (left, top) != (right, bottom) and min(view.stride) > 1:
                self.model.changed = True
                left, top = right, bottom
        return source, (left, right, top, bottom), view


Built = tuple[nn.Module, Sequence[int]]


class _Apply(nn.Module):
    """A function of its operands, then an activation; some operands may be constants."""

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        activation: nn.Module | None = None,
        constants: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.function, self.activation = function, activation or nn.Identity()
        self._positions = sorted(constants or {})
        for position in self._positions:
            self.register_buffer(f"operand_{position}", (constants or {})[position])

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        every = list(operands)
        for position in self._positions:
            every.insert(position, getattr(self, f"operand_{position}"))
        result: torch.Tensor = self.activation(self.function(*every))
        return result


def _chain(*layers: nn.Module) -> nn.Module:
    """Join layers; those that do nothing are dropped."""
    real = [layer for layer in layers if not isinstance(layer, nn.Identity)]
    return real[0] if len(real) == 1 else nn.Sequential(*real)


def _padding(margins: Margins, value: float = 0.0) -> tuple[tuple[int, int], nn.Module]:
    """Return the padding that a layer can do itself, and the step before it that does the rest."""
    left, right, top, bottom = margins
    if left == right and top == bottom:
        return (top, left), nn.Identity()
    return (0, 0), nn.ConstantPad2d(margins, value)


def _convolution(site: _Site, weights: Any, groups: int) -> Built:
    """Build from weights [O, I / groups, H, W]."""
    outputs, inputs, height, width = weights.shape
    source, margins, view = site.window((height, width))
    own, before = _padding(margins)
    bias = site.data(2)
    layer = nn.Conv2d(
        *(inputs * groups, outputs, (height, width), view.stride, own, view.dilation, groups),
        bias=bias is not None,
    )
    _fill(layer, weights, bias)
    return _chain(before, layer, site.activation()), [source]


def _fill(layer: Any, weights: Any, bias: Any) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(weights, np.float32)))
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(np.array(bias, np.float32)))


def _conv_2d(site: _Site) -> Built:
    weights = site.data(1).transpose(0, 3, 1, 2)
    return _convolution(site, weights, site.shape(0)[3] // weights.shape[1])


def _depthwise(site: _Site) -> Built:
    return _convolution(site, site.data(1).transpose(3, 0, 1, 2), site.shape(0)[3])


def _fully_connected(site: _Site) -> Built:
    weights, bias = site.data(1), site.data(2)
    units, depth = weights.shape
    layer = nn.Linear(depth, units, bias is not None)
    _fill(layer, weights, bias)
    shape = site.graph.values[site.node.outputs[0]].shape

    def run(x: torch.Tensor) -> torch.Tensor:
        return _inside(layer(_outside(x).reshape(-1, depth)).reshape(shape))

    return _holding(layer, _Apply(run, site.activation())), site.node.inputs[:1]


def _holding(part: nn.Module, whole: nn.Module) -> nn.Module:
    """Make the parameters of a part those of the whole too."""
    whole.add_module("part", part)
    return whole


def _max_pool(site: _Site) -> Built:
    kernel = (site.node.params["filter_height"], site.node.params["filter_width"])
    source, margins, view = site.window(kernel)
    own, before = _padding(margins, float("-inf"))
    return _chain(before, nn.MaxPool2d(kernel, view.stride, own), site.activation()), [source]


def _average_pool(site: _Site) -> Built:
    """Build a mean that leaves out what lies outside of the image."""
    kernel = (site.node.params["filter_height"], site.node.params["filter_width"])
    source, margins, view = site.window(kernel)
    own, before = _padding(margins)
    if isinstance(before, nn.Identity):
        layer: nn.Module = nn.AvgPool2d(kernel, view.stride, own, count_include_pad=False)
        return _chain(layer, site.activation()), [source]
    layer = _chain(before, nn.AvgPool2d(kernel, view.stride))
    inside = layer(torch.ones(1, 1, *site.shape(0)[1:3]))
    whole = _Apply(lambda x: layer(x) / whole.share, site.activation())
    whole.register_buffer("share", inside)
    return _holding(layer, whole), [source]


def _broadcasting(site: _Site, function: Callable[..., torch.Tensor]) -> Built:
    """Build a function of operands of one rank; constants may have fewer dimensions."""
    values = [site.graph.values[v] for v in site.node.inputs]
    rank = len(site.graph.values[site.node.outputs[0]].shape)
    constants = {}
    for position, value in enumerate(values):
        if value.data is not None:
            array = torch.from_numpy(np.array(value.data, np.float32))
            ones = (1,) * (rank - array.dim())
            constants[position] = _inside(array.reshape(ones + tuple(array.shape)))
        elif len(value.shape) != rank:
            raise NotExpressibleError(f"{site.node.op} of computed values of different ranks.")
    computed = [value.id for value in values if value.data is None]
    return _Apply(function, site.activation(), constants), computed


def _element_wise(function: Callable[..., torch.Tensor]) -> Callable[[_Site], Built]:
    return lambda site: _broadcasting(site, function)


def _concatenation(site: _Site) -> Built:
    axis = site.dim(site.node.params["axis"], len(site.shape(0)))
    return _broadcasting(site, lambda *x: torch.cat(x, axis))


def _of_first(site: _Site, function: Callable[[torch.Tensor], torch.Tensor]) -> Built:
    """Build a function of the first input."""
    return _Apply(function), site.node.inputs[:1]


def _reshape(site: _Site) -> Built:
    shape = site.graph.values[site.node.outputs[0]].shape
    return _of_first(site, lambda x: _inside(_outside(x).reshape(shape)))


def _softmax(site: _Site) -> Built:
    axis, beta = site.dim(-1, len(site.shape(0))), site.node.params["beta"]
    return _of_first(site, lambda x: torch.softmax(x if beta == 1 else x * beta, axis))


def _mean(site: _Site) -> Built:
    rank, keep = len(site.shape(0)), bool(site.node.params["keep_dims"])
    axes = sorted({int(axis) % rank for axis in site.data(1).reshape(-1)})
    dims = [site.dim(axis, rank) for axis in axes]
    if keep or rank != 4 or axes == [1, 2]:
        return _of_first(site, lambda x: x.mean(dims, keep))
    return _of_first(site, lambda x: _outside(x).mean(axes))


def _pad(site: _Site) -> Built:
    rank, fill = len(site.shape(0)), site.data(2)
    value = 0.0 if fill is None else float(fill.reshape(-1)[0])
    here = {site.dim(axis, rank): pair.tolist() for axis, pair in enumerate(site.data(1))}
    widths = [n for dim in sorted(here, reverse=True) for n in here[dim]]
    return _of_first(site, lambda x: functional.pad(x, widths, value=value))


def _resize_bilinear(site: _Site) -> Built:
    size = tuple(int(n) for n in site.data(1))
    aligned = bool(site.node.params["align_corners"])
    centered = bool(site.node.params["half_pixel_centers"])
    if size == tuple(site.shape(0)[1:3]):
        return nn.Identity(), site.node.inputs[:1]
    if aligned == centered:
        raise NotExpressibleError("RESIZE_BILINEAR with neither aligned corners nor pixel centers.")
    return _of_first(
        site,
        lambda x: functional.interpolate(x, size, mode="bilinear", align_corners=aligned),
    )


def _transpose(site: _Site) -> Built:
    order = [int(axis) for axis in site.data(1)]
    return _of_first(site, lambda x: _inside(_rows(x).permute(order)))


def _rows(array: torch.Tensor) -> torch.Tensor:
    """Return a value in the order of the .tflite file, wherever its elements lie."""
    return array.permute(0, 2, 3, 1) if array.dim() == 4 else array


def _batch_matmul(site: _Site) -> Built:
    turned = bool(site.node.params["adj_x"]), bool(site.node.params["adj_y"])

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pairs = zip((x, y), turned, strict=True)
        return _inside(torch.matmul(*(_rows(z).mT if t else _rows(z) for z, t in pairs)))

    return _broadcasting(site, run)


def _gelu(site: _Site) -> Built:
    approximate = "tanh" if site.node.params["approximate"] else "none"
    return _of_first(site, lambda x: functional.gelu(x, approximate=approximate))


def _strided_slice(site: _Site) -> Built:
    """Build a slice by the masks of the operation; an axis of one element may go."""
    masks = site.node.params
    if masks["ellipsis_mask"] or masks["new_axis_mask"] or masks.get("offset"):
        raise NotExpressibleError("STRIDED_SLICE with new axes, an ellipsis or offsets.")
    begin, end, step = (site.data(position).tolist() for position in (1, 2, 3))
    if min(step) < 0:
        raise NotExpressibleError("STRIDED_SLICE that goes backwards.")
    pieces: list[slice | int] = []
    for axis in range(len(begin)):
        bit = 1 << axis
        if masks["shrink_axis_mask"] & bit:
            pieces.append(begin[axis])
            continue
        first = None if masks["begin_mask"] & bit else begin[axis]
        last = None if masks["end_mask"] & bit else end[axis]
        pieces.append(slice(first, last, step[axis]))
    return _of_first(site, lambda x: _inside(_rows(x)[tuple(pieces)]))


def _squared_difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y) ** 2


def _prelu(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, min=0) + alpha * torch.clamp(x, max=0)


_BUILDERS: Mapping[str, Callable[[_Site], Built]] = {
    "ADD": _element_wise(operator.add),
    "AVERAGE_POOL_2D": _average_pool,
    "BATCH_MATMUL": _batch_matmul,
    "CONCATENATION": _concatenation,
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "DIV": _element_wise(operator.truediv),
    "FULLY_CONNECTED": _fully_connected,
    "GELU": _gelu,
    "HARD_SWISH": _element_wise(functional.hardswish),
    "LOGISTIC": _element_wise(torch.sigmoid),
    "MAX_POOL_2D": _max_pool,
    "MEAN": _mean,
    "MUL": _element_wise(operator.mul),
    "NEG": _element_wise(torch.neg),
    "PAD": _pad,
    "PADV2": _pad,
    "PRELU": _element_wise(_prelu),
    "RELU": _element_wise(torch.relu),
    "RELU6": _element_wise(functional.relu6),
    "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _resize_bilinear,
    "RSQRT": _element_wise(torch.rsqrt),
    "SOFTMAX": _softmax,
    "SQUARED_DIFFERENCE": _element_wise(_squared_difference),
    "SQUEEZE": _reshape,
    "STRIDED_SLICE": _strided_slice,
    "SUB": _element_wise(operator.sub),
    "TANH": _element_wise(torch.tanh),
    "TRANSPOSE": _transpose,
}
