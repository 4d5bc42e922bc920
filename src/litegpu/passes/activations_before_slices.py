"""Applies the activations of a value's slices before the slicing, in the epilogue of its kernel.

The gates of an LSTM are slices of one product: most have a logistic activation, and one has a
hyperbolic tangent. Kernels read slices without an activation in place, so these slices need no
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_FUNCTIONS = ("LOGISTIC", "TANH")


@dataclass(frozen=True, slots=True)
class _Gate:
    """A slice of channels, and the activation that applies to this slice alone."""

    slice: Node
    activation: Node

    @property
    def function(self) -> str:
        return self.activation.epilogue[0].function

    def width(self, graph: Graph) -> int:
        """Return the number of channels of the slice."""
        return graph.values[self.slice.outputs[0]].shape4[3]


def activations_before_slices(graph: Graph) -> PassResult:
    """Visit each value that only activated slices of its channels read."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for value, readers in consumers.items():
        if len(readers) < 2 or value in graph.outputs or value not in graph.values:
            continue
        gates = [_gate(graph, consumers, value, each) for each in readers]
        known = [each for each in gates if each is not None]
        if len(known) < len(gates):
            if known:
                edit.declined.append(
                    f"{label(known[0].slice)}: other nodes read other parts of the value"
                )
            continue
        if sum(each.width(graph) for each in known) < graph.values[value].shape4[3]:
            edit.declined.append(f"{label(known[0].slice)}: no node reads some of the channels")
            continue
        _rewrite(edit, value, known)
        names = ", ".join(label(each.activation) for each in known)
        edit.applied.append(f"{names} before {', '.join(label(each.slice) for each in known)}")
    return edit.result()


def _gate(
    graph: Graph, consumers: Mapping[int, list[Node]], value: int, node: Node
) -> _Gate | None:
    """Return a reader as a slice of channels with an activation; None for other nodes."""
    source = graph.values[value]
    if node.op != STRIDED_SLICE or node.epilogue or source.dtype is not DType.FLOAT32:
        return None
    attributes: CopyAttributes = node.attributes
    (part,) = node.outputs
    lead = source.shape4[:3] == graph.values[part].shape4[:3]
    if not lead or attributes.step != (1, 1, 1, 1):
        return None
    activation = only_consumer(part, consumers, graph.outputs)
    if activation is None or activation.op != COPY or activation.attributes is not None:
        return None
    functions = [each.function for each in activation.epilogue]
    if len(functions) != 1 or functions[0] not in _FUNCTIONS:
        return None
    return _Gate(node, activation)


def _rewrite(edit: Editor, value: int, gates: Sequence[_Gate]) -> None:
    """Apply the activations to the whole value, and let the slices read the result."""
    source = edit.values[value]
    whole = edit.new_value(source)
    first = min(gates, key=lambda each: edit.position(each.slice))
    merged = tuple(each.activation.index for each in gates)
    activation = Node(
        *(first.activation.index, COPY, 1, (value,), (whole,)),
        epilogue=(_epilogue(edit, value, gates),),
        merged=merged,
    )
    edit.insert_before(edit.position(first.slice), activation)
    for each in gates:
        place = edit.position(each.slice)
        edit.nodes[place] = replace(each.slice, inputs=(whole,), outputs=each.activation.outputs)
        edit.nodes[edit.position(each.activation)] = None


def _epilogue(edit: Editor, value: int, gates: Sequence[_Gate]) -> EpilogueOp:
    """Return the epilogue of the whole value: one activation, or a selection by channel."""
    if len({each.function for each in gates}) == 1:
        return gates[0].activation.epilogue[0]
    source = edit.values[value]
    chosen = np.zeros((1,) * (len(source.shape) - 1) + source.shape[-1:], np.float32)
    for each in gates:
        begin = each.slice.attributes.begin[3]
        chosen[..., begin : begin + each.width(edit.graph)] = each.function == "TANH"
    constant = edit.new_constant(f"{source.name}/activations", chosen)
    return EpilogueOp("LOGISTIC_OR_TANH", (constant,))
