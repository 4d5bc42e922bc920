"""The ops AVERAGE_POOL_2D, MAX_POOL_2D and L2_POOL_2D."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litegpu.codegen import FLOAT, Storage, register_of
from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, KernelRequest, LowerContext, NewValue, Op, Shape, add
from litegpu.ops.common import checks, facts, window
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import PoolAttributes, Window
from litegpu.ops.common.work_groups import by_load, shared_items
from litegpu.ops.exact.pool import ExactPool

_MEAN = "AVERAGE_POOL_2D"
_MAX_TAPS = 25
"""Maximum number of taps of a window that a kernel unrolls for several adjacent outputs."""
_NEIGHBOURS = (4, 2, 1)
"""Numbers of adjacent outputs that a work item may compute, largest first."""


class Pool2D(Op):
    """An average or maximum pool over H and W."""

    max_version = 3
    traits = Trait.CONVEX | Trait.WINDOWED

    def __init__(self, name: str, maximum: bool) -> None:
        self.name = name  # type: ignore[misc]
        self.maximum = maximum
        self.exact = ExactPool(_check_shapes)  # type: ignore[misc]

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.of_window(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            checks.activation(node),
            lambda: _check_shapes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        image = graph.values[node.inputs[0]].shape
        return (window.result_shape(node.params, image, _kernel(node), image[3]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        _, height, width, _ = graph.values[node.inputs[0]].shape
        view = window.window_of(node.params, _kernel(node), (height, width))
        epilogue = activation_epilogue(node.params)
        return (replace(node, attributes=PoolAttributes(view), epilogue=epilogue),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (pool_kernel(node, ctx, node.attributes, self.maximum),)


class L2Pool(Pool2D):
    """Computes the square root of the mean of squares in each window over H and W."""

    max_version = 1

    def __init__(self) -> None:
        self.name = "L2_POOL_2D"  # type: ignore[misc]

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        squares = new_value(shape, precise=True)
        square, root = EpilogueOp("SQUARE"), EpilogueOp("SQRT")
        mean = replace(node, op=_MEAN, inputs=(squares,))
        (pooled,) = super().normalize(_with(graph, squares, node.inputs[0]), mean, new_value)
        return (
            Node(node.index, COPY, 1, node.inputs, (squares,), epilogue=(square,)),
            replace(pooled, epilogue=(root, *pooled.epilogue)),
        )


def _with(graph: Graph, v: int, like: int) -> Graph:
    """Return the graph with an additional value `v` of the shape of `like`."""
    return replace(graph, values={**graph.values, v: replace(graph.values[like], id=v)})


def pool_kernel(
    node: Node, ctx: LowerContext, attributes: PoolAttributes, maximum: bool
) -> KernelRequest:
    """Return the kernel of a pool; the work items of a group share large windows.

    Outputs with adjacent small windows share loads, unless the order of float sums would change.
    """
    view = attributes.window
    src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
    register = register_of(src.dtype)
    unit = Unit.FP32 if register is FLOAT else Unit.INT32
    taps = view.kernel[0] * view.kernel[1]
    small = (maximum or register is not FLOAT) and taps <= _MAX_TAPS
    items = 1 if small else shared_items(dst.rows * dst.channel_blocks, taps // 2, ctx)
    kernel = KernelRequest(
        template="pool_2d",
        grid=(dst.channel_blocks * items, dst.rows, 1),
        local=(items, 1, 1) if items > 1 else (8, 8, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        variables={
            "ITEMS": items,
            "maximum": maximum,
            "outside": attributes.outside,
            "kernel": view.kernel,
            "stride": view.stride,
            "pads": view.pads,
        },
        shared=((register.type, "scratch", items),) if items > 1 else (),
        work={unit: dst.rows * dst.channels * taps},
        needed={"src": view.elements_read(dst.rows, src.padded_channels)},
        accumulator=register,
    )
    return _of_neighbours(kernel, view, src, dst, ctx) if small else kernel


def _of_neighbours(
    kernel: KernelRequest, view: Window, src: Storage, dst: Storage, ctx: LowerContext
) -> KernelRequest:
    """Return a kernel in which a work item computes several adjacent outputs of a row."""

    def items(columns: int) -> int:
        return dst.channel_blocks * parts(columns)

    def parts(columns: int) -> int:
        return dst.shape[0] * dst.shape[1] * -(-dst.shape[2] // columns)

    columns = by_load(_NEIGHBOURS, items, ctx.target)[0]
    return replace(
        kernel,
        template="small_pool_2d",
        grid=(dst.channel_blocks, parts(columns), 1),
        local=(16, 4, 1) if dst.channel_blocks % 16 == 0 else (8, 8, 1),
        variables={
            **kernel.variables,
            "COLUMNS": columns,
            "columns": window.readers(view, 1, columns),
            "padded": view.leaves(src.shape[1:3], dst.shape[1:3]),
        },
    )


def _kernel(node: Node) -> tuple[int, int]:
    return node.params["filter_height"], node.params["filter_width"]


def _check_shapes(graph: Graph, node: Node) -> str:
    image = graph.values[node.inputs[0]].shape
    if len(image) != 4:
        return f"The input must have 4 dimensions, not {list(image)}."
    return window.check_window(node.params, _kernel(node), (image[1], image[2]))


add(Pool2D(_MEAN, maximum=False))
add(Pool2D("MAX_POOL_2D", maximum=True))
add(L2Pool())
