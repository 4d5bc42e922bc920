"""Rewrites SPACE_TO_BATCH_ND, a convolution and BATCH_TO_SPACE_ND as one dilated convolution.

Older converters express a dilated convolution by SPACE_TO_BATCH_ND, a convolution and
BATCH_TO_SPACE_ND. The rewrite saves two kernels that each read and write the whole image:
SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from litegpu.graph import SELF, Graph, Node
from litegpu.ops.base import COPY, Shape, has
from litegpu.ops.common.functions import depends_on_position
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import Window
from litegpu.ops.reshape import RESHAPE, reshape_node
from litegpu.ops.space_to_batch_nd import Blocks, batch_blocks, space_blocks
from litegpu.passes.base import Editor, PassResult, label, only_consumer


@dataclass(frozen=True, slots=True)
class _Chain:
    """A convolution between the two block operations; 1D images also have `view` and `back`."""

    cut: Node
    view: Node | None
    convolution: Node
    elementwise: tuple[Node, ...]
    back: Node | None
    join: Node


def blocks_into_dilation(graph: Graph) -> PassResult:
    """Rewrite each such convolution; SPACE_TO_BATCH_ND remains if it has other readers."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    unused: dict[int, Node] = {}
    for node in graph.nodes:
        if not has(node, Trait.WINDOWED | Trait.SUMS_PRODUCTS):
            continue
        producer = producers.get(node.inputs[0])
        view = producer if producer is not None and producer.op == RESHAPE else None
        cut = producers.get(view.inputs[0]) if view is not None else producer
        if cut is None or batch_blocks(graph, cut) is None:
            continue
        chain = _chain(graph, consumers, cut, view, node)
        reason = (
            _obstacle(graph, chain)
            if chain
            else "the result is not read by exactly one BATCH_TO_SPACE_ND"
        )
        if chain is None or reason:
            edit.declined.append(f"{label(node)} between blocks: {reason}")
            continue
        _rewrite(edit, chain)
        unused |= {id(each): each for each in (view, cut) if each is not None}
        edit.applied.append(f"{label(cut)} and {label(chain.join)} into {label(node)}")
    edit.drop_unread(sorted(unused.values(), key=edit.position, reverse=True))
    return edit.result()


def _chain(
    graph: Graph, consumers: Mapping[int, list[Node]], cut: Node, view: Node | None, node: Node
) -> _Chain | None:
    """Follow the result of a convolution to the BATCH_TO_SPACE_ND that joins the blocks."""
    elementwise: list[Node] = []
    back = None
    value = node.outputs[0]
    while True:
        reader = only_consumer(value, consumers, graph.outputs)
        if reader is None or reader.inputs[0] != value or reader.operands.count(value) > 1:
            return None
        if space_blocks(graph, reader) is not None:
            return _Chain(cut, view, node, tuple(elementwise), back, reader)
        if reader.op == COPY and reader.epilogue:
            elementwise.append(reader)
        elif reader.op == RESHAPE and back is None:
            back = reader
        else:
            return None
        value = reader.outputs[0]


def _obstacle(graph: Graph, chain: _Chain) -> str:
    if chain.convolution.attributes.window.stride != (1, 1):
        return "the convolution has strides"
    if (chain.view or chain.back) and _along(graph, chain) is None:
        return "the image has another shape than the blocks"
    cut, join = _blocks(graph, chain)
    if cut.sizes != join.sizes:
        return (
            f"the blocks {list(cut.sizes)} before the convolution differ from the blocks "
            f"{list(join.sizes)} after it"
        )
    zero = getattr(chain.convolution.attributes, "input_zero", None)
    if chain.cut.attributes.fill != (zero or 0):
        return "the padding of the blocks is not the zero point of the convolution's input"
    if zero is not None and min(_window(graph, chain).pads) < 0:
        return "quantized convolutions have no negative padding"
    for part in (chain.convolution, *chain.elementwise):
        if depends_on_position(part.epilogue):
            return "an epilogue op depends on the positions of elements"
        operands = [v for epilogue_op in part.epilogue for v in epilogue_op.operands if v != SELF]
        if any(graph.values[v].shape4[:3] != (1, 1, 1) for v in operands):
            return "an epilogue op's operand differs from pixel to pixel"
    for part in chain.elementwise:
        if graph.values[part.inputs[0]].shape != graph.values[part.outputs[0]].shape:
            return "an epilogue op broadcasts its result"
    return ""


def _along(graph: Graph, chain: _Chain) -> int | None:
    """Return the axis of a 1D image: 0 for H, 1 for W; None for images of two dimensions."""
    if chain.view is None or chain.back is None:
        return None
    flat = (chain.cut.outputs[0], chain.back.outputs[0])
    seen = (chain.view.outputs[0], chain.back.inputs[0])
    for along in (0, 1):
        wanted = [_with_axis(graph.values[v].shape, 1 - along) for v in flat]
        if wanted == [graph.values[v].shape for v in seen]:
            return along
    return None


def _with_axis(shape: Shape, missing: int) -> Shape:
    """Return a shape [N, length, C] with H (0) or W (1) of size 1 inserted."""
    return (*shape[: 1 + missing], 1, *shape[1 + missing :])


def _blocks(graph: Graph, chain: _Chain) -> tuple[Blocks, Blocks]:
    """Return the block sizes along H and W before and after the convolution."""
    along = _along(graph, chain)
    found = []
    for blocks in (batch_blocks(graph, chain.cut), space_blocks(graph, chain.join)):
        sizes, before = (list(blocks.sizes), list(blocks.before)) if blocks else ([], [])
        if along is not None:
            sizes.insert(1 - along, 1)
            before.insert(1 - along, 0)
        found.append(Blocks(tuple(sizes), tuple(before)))
    return found[0], found[1]


def _rewrite(edit: Editor, chain: _Chain) -> None:
    """Let the convolution read the whole image and apply its epilogue to the whole result."""
    graph, node, along = edit.graph, chain.convolution, _along(edit.graph, chain)
    output, result = chain.cut.inputs[0], chain.join.outputs[0]
    shape = graph.values[result].shape
    positions = [edit.position(each) for each in (node, *chain.elementwise)]
    if along is not None:
        shape = _with_axis(shape, 1 - along)
        flat = graph.values[output]
        output = edit.new_value(flat, shape=_with_axis(flat.shape, 1 - along))
        edit.insert_before(positions[0], reshape_node(node, flat.id, output))
    merged = (*node.merged, chain.cut.index, chain.join.index)
    attributes = replace(node.attributes, window=_window(graph, chain))
    dilated = replace(node, attributes=attributes, merged=merged)
    for position, member in zip(positions, (dilated, *chain.elementwise), strict=True):
        whole = position == positions[-1] and along is None
        target = result if whole else edit.new_value(graph.values[member.outputs[0]], shape=shape)
        inputs = (output, *member.inputs[1:])
        edit.nodes[position] = replace(member, inputs=inputs, outputs=(target,))
        output = target
    joined = None
    if chain.back is not None:
        edit.nodes[edit.position(chain.back)] = None
        joined = reshape_node(chain.join, output, result)
    edit.nodes[edit.position(chain.join)] = joined


def _window(graph: Graph, chain: _Chain) -> Window:
    """Return the window over the whole image; unread edge pixels are negative padding."""
    window: Window = chain.convolution.attributes.window
    cut, join = _blocks(graph, chain)
    pads = [
        first + pad * size - cropped
        for first, pad, size, cropped in zip(
            cut.before, window.pads, cut.sizes, join.before, strict=True
        )
    ]
    dilation = [d * size for d, size in zip(window.dilation, cut.sizes, strict=True)]
    return replace(window, pads=(pads[0], pads[1]), dilation=(dilation[0], dilation[1]))
