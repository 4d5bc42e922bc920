"""CONV_2D, and the choice of kernel for everything that is a dense sum over channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen import Storage, round_up
from litegpu.codegen.storage import Shape4
from litegpu.graph import ABSENT, SELF, Graph, Node, Stage
from litegpu.ops import (
    checks,
    conv_mma,
    conv_narrow,
    conv_patch,
    conv_tile,
    separable,
    weights,
    window,
)
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    as_float32,
    by_load,
    can_share,
    register,
)
from litegpu.ops.weights import Weights, check_bias
from litegpu.ops.window import DepthwiseAttributes

_SPLIT_ITEMS = (64, 32)
"""Work items that may share out one sum; the first that the device allows."""


@dataclass(frozen=True, slots=True)
class DepthwiseStep:
    """A depthwise convolution, its element-wise steps and the shape [N, H, W, C] it makes.

    One without weights is a mean over its window.
    """

    attributes: DepthwiseAttributes
    stages: tuple[Stage, ...]
    shape: tuple[int, int, int, int]

    @property
    def constants(self) -> tuple[int, ...]:
        operands = tuple(v for stage in self.stages for v in stage.operands if v != SELF)
        return (self.attributes.weights, self.attributes.bias, *operands)


@dataclass(frozen=True, slots=True)
class ConvAttributes:
    """Window, and weights of `shape` [O, H, W, I / groups] with the bias [O] (value ids).

    Computed weights have been packed; a bias that is computed, or that there is none of, is
    ABSENT. `depthwise` is computed on the fly as the input of a pointwise convolution.
    """

    window: window.Window
    weights: int
    bias: int
    shape: Shape4
    groups: int = 1
    depthwise: DepthwiseStep | None = None

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights, self.bias, *(self.depthwise.constants if self.depthwise else ()))


@register
class Conv2D(Op):
    """2-D convolution: stride, dilation, groups, bias, activation; weights may be computed."""

    name = "CONV_2D"
    max_version = 6
    sums = True

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        image = graph.values[node.inputs[0]].shape
        outputs, kh, kw, _ = graph.values[node.inputs[1]].shape
        return (window.result_shape(node.params, image, (kh, kw), outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        _, height, width, channels = graph.values[node.inputs[0]].shape
        outputs, kh, kw, depth = graph.values[node.inputs[1]].shape
        shape = outputs, kh, kw, depth
        held = weights.normalize(graph, node, new_value, shape, channels // depth)
        view = window.window_of(node.params, (kh, kw), (height, width))
        return conv_nodes(node, node.inputs[0], view, held)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (conv_kernel(node, ctx),)


def conv_nodes(
    node: Node, image: int, view: window.Window, held: weights.Normalized
) -> tuple[Node, ...]:
    """Return what replaces a node: the packing of its weights, if computed, and a convolution."""
    attributes = ConvAttributes(view, held.weights, held.bias, held.shape, held.groups)
    inputs = (image, *held.inputs)
    return (*held.nodes, replace(node, inputs=inputs, attributes=attributes, stages=held.stages))


def conv_kernel(node: Node, ctx: LowerContext) -> KernelRequest:
    """Return the kernel of a node with ConvAttributes."""
    attributes: ConvAttributes = node.attributes
    held, view = weights.read(ctx, attributes), attributes.window
    if attributes.depthwise is not None and held.array is not None:
        step = _depthwise_operand(attributes.depthwise, ctx)
        return tensor_core_kernel(node, ctx, held.array, held.bias, view, step)
    return dense_kernel(node, ctx, held, view)


def _depthwise_operand(step: DepthwiseStep, ctx: LowerContext) -> conv_mma.Depthwise:
    attributes = step.attributes
    bias = weights.read_bias(ctx, attributes.bias)
    is_mean = attributes.weights == ABSENT
    taps = None if is_mean else as_float32(ctx.value(attributes.weights))[0]
    return conv_mma.Depthwise(attributes.window, taps, bias, step.stages, step.shape)


def _check_shapes(graph: Graph, node: Node) -> str:
    image = graph.values[node.inputs[0]].shape
    kernel = graph.values[node.inputs[1]].shape
    if len(image) != 4 or len(kernel) != 4:
        return f"Input {list(image)} and filter {list(kernel)} must have 4 dimensions."
    channels, outputs, depth = image[3], kernel[0], kernel[3]
    if depth < 1 or channels % depth or outputs % (channels // depth):
        return f"{channels} input channels and a filter of {list(kernel)} do not form groups."
    return checks.first_of(
        check_bias(graph, node, outputs),
        weights.check_groups((outputs, kernel[1], kernel[2], depth), channels // depth),
        window.check_window(node.params, (kernel[1], kernel[2]), (image[1], image[2])),
    )


def dense_kernel(
    node: Node, ctx: LowerContext, held: Weights, view: window.Window
) -> KernelRequest:
    """Return the kernel of a convolution.

    The node's first input and output may have any shape whose rows of channels match the window:
    a fully connected layer is a 1x1 convolution over its rows.
    """
    rows = ctx.storage(node.outputs[0]).rows
    if held.array is not None and conv_mma.usable(ctx, held.array, held.groups, rows):
        return tensor_core_kernel(node, ctx, held.array, held.bias, view)
    dst = ctx.storage(node.outputs[0])
    src = ctx.storage(node.inputs[0])
    held = weights.spread_groups(held)
    inputs = -(-held.shape[3] // 4)
    group_outputs = held.shape[0] // held.groups
    flops = 2 * dst.rows * held.elements
    variables = {
        **view.words(src.shape[1:3]),
        "padded": view.leaves(src.shape[1:3], dst.shape[1:3]),
        "input_slices": inputs,
        "groups": held.groups,
        "group_outputs": group_outputs,
        "pointwise": conv_mma.keeps_rows(node.op, view, src, dst),
    }
    needed = {"src": view.taken(dst.rows, src.lanes)}
    work = dst.rows * dst.slices
    items = next((items for items in _SPLIT_ITEMS if can_share(items, ctx)), 0)
    long = view.kernel[0] * view.kernel[1] * inputs >= 2 * items
    if items and long and work * 4 <= ctx.target.parallel_items:
        bound = weights.bind(held, dst.slices, ctx)
        return KernelRequest(
            template="conv_2d_split",
            grid=(dst.slices * items, dst.rows, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], **bound.reads},
            constants=bound.constants,
            variables={**variables, **bound.variables, "ITEMS": items},
            shared=(("float4", "scratch", items),),
            flops=flops,
            needed=needed,
        )
    whole_groups = held.groups == 1 or group_outputs % 8 == 0
    terms = (*view.kernel, inputs)
    problem = TileProblem("conv_2d", dst.rows, dst.slices, terms, src.dtype.value, whole_groups)
    pixels, slices = choose_tile(problem, ctx)
    padded_slices = round_up(dst.slices, slices)
    bound = weights.bind(held, padded_slices, ctx)
    return KernelRequest(
        template="conv_2d",
        grid=(padded_slices // slices, -(-dst.rows // pixels), 1),
        local=(8, 8, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0], **bound.reads},
        constants=bound.constants,
        variables={**variables, **bound.variables, "PIXELS": pixels, "SLICES": slices},
        flops=flops,
        needed=needed,
    )


def tensor_core_kernel(
    node: Node,
    ctx: LowerContext,
    array: weights.Floats,
    bias: weights.Floats | None,
    view: window.Window,
    step: conv_mma.Depthwise | None = None,
    destination: Storage | None = None,
) -> KernelRequest:
    """Return the kernel of a convolution whose weights are known, for few pixels or for many.

    It writes to `destination`, a part of the output, if given.
    """
    src, dst = ctx.storage(node.inputs[0]), destination or ctx.storage(node.outputs[0])
    if step is not None:
        separable_tile = separable.choose_tile(ctx, src, dst, step)
        if separable_tile is not None:
            return separable.separable_kernel(
                node, ctx, separable_tile, array, bias, step, destination
            )
    else:
        narrow = conv_narrow.choose_tile(ctx, src, dst, array, view)
        if narrow is not None:
            return conv_narrow.narrow_kernel(node, ctx, narrow, array, bias, destination)

        def tiled() -> KernelRequest | None:
            tile = conv_tile.choose_tile(ctx, src, dst, array)
            if tile is None:
                return None
            return conv_tile.tile_kernel(node, ctx, tile, array, bias, view, destination)

        def patched() -> KernelRequest | None:
            patch = conv_patch.choose_tile(ctx, src, dst, array, view)
            if patch is None:
                return None
            return conv_patch.patch_kernel(node, ctx, patch, array, bias, destination)

        # The second is not even asked where the first is taken: a choice may mean a measurement.
        padding = conv_tile.mostly_padding(array.shape)
        made = (patched() or tiled()) if padding else (tiled() or patched())
        if made is not None:
            return made
    return conv_mma.mma_kernel(node, ctx, array, bias, view, step, destination)


@dataclass(frozen=True, slots=True)
class TileProblem:
    """What decides about tiles of pixels and slices."""

    template: str
    rows: int
    slices: int
    terms: tuple[int, ...]
    """What is summed up: the window, and the slices or channels of the input."""
    stored: str
    """Type of the input's elements."""
    whole_groups: bool = True
    """Whether two slices that lie side by side always belong to one group of channels."""


_TILES = ((4, 2), (4, 1), (2, 2), (2, 1), (1, 2))


def choose_tile(problem: TileProblem, ctx: LowerContext) -> tuple[int, int]:
    """Return a tile (pixels, slices): the largest that still leaves the device enough work items.

    It may be another one if that was found faster.
    """

    def items(tile: tuple[int, int]) -> int:
        return -(-problem.rows // tile[0]) * -(-problem.slices // tile[1])

    widest = min(problem.slices, 2 if problem.whole_groups else 1)
    fitting = [tile for tile in _TILES if tile[0] <= problem.rows and tile[1] <= widest]
    return ctx.choose(problem, by_load([*fitting, (1, 1)], items, ctx))
