"""Which results of the CPU's operations have shapes that only the running model knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from litegpu.graph import ABSENT, Node, Value

UNKNOWN = (-1,)
"""The shape of a value whose shape is not known before the model runs."""

_REDUCTIONS = ("MEAN", "SUM", *(f"REDUCE_{kind}" for kind in ("ALL", "ANY", "MAX", "MIN", "PROD")))
_SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_REDUCTIONS, (1,)),
    "ARG_MAX": (1,),
    "ARG_MIN": (1,),
    "BATCH_TO_SPACE_ND": (1, 2),
    "BROADCAST_TO": (1,),
    "CONV_3D_TRANSPOSE": (0,),
    "EXPAND_DIMS": (1,),
    "FILL": (0,),
    "MIRROR_PAD": (1,),
    "MULTINOMIAL": (1,),
    "NON_MAX_SUPPRESSION_V4": (2,),
    "NON_MAX_SUPPRESSION_V5": (2,),
    "ONE_HOT": (1,),
    "PAD": (1,),
    "PADV2": (1,),
    "RANDOM_STANDARD_NORMAL": (0,),
    "RANDOM_UNIFORM": (0,),
    "RANGE": (0, 1, 2),
    "RESHAPE": (1,),
    "RESIZE_BILINEAR": (1,),
    "RESIZE_NEAREST_NEIGHBOR": (1,),
    "SCATTER_ND": (2,),
    "SLICE": (1, 2),
    "SPACE_TO_BATCH_ND": (1, 2),
    "SPARSE_TO_DENSE": (1,),
    "SPLIT": (0,),
    "SPLIT_V": (1, 2),
    "STRIDED_SLICE": (1, 2, 3),
    "TILE": (1,),
    "TOPK_V2": (1,),
    "TRANSPOSE": (1,),
    "TRANSPOSE_CONV": (0,),
    "UNSORTED_SEGMENT_MAX": (2,),
    "UNSORTED_SEGMENT_MIN": (2,),
    "UNSORTED_SEGMENT_PROD": (2,),
    "UNSORTED_SEGMENT_SUM": (2,),
}
"""Inputs whose data decide the shape of an operation's result."""

_ALWAYS = frozenset(
    ("EMBEDDING_LOOKUP_SPARSE", "IF", "SEGMENT_SUM", "SKIP_GRAM", "UNIQUE", "WHERE", "WHILE")
)
"""Operations whose data, or a subgraph, decide the shapes of their results."""

SHAPE_READERS = ("SHAPE", "RANK")


def follows_from_shapes(node: Node, values: Mapping[int, Value], known: Collection[int]) -> bool:
    """Whether the data of a node's results are known as soon as all shapes are.

    `known` are the earlier values of that kind, beside the constants.
    """
    if node.op in SHAPE_READERS:
        return all(v != ABSENT and values[v].shape != UNKNOWN for v in node.inputs)
    return bool(node.inputs) and all(
        v == ABSENT or v in known or values[v].is_constant for v in node.inputs
    )


def has_unknown_result(node: Node, values: Mapping[int, Value], known: Collection[int]) -> bool:
    """Whether only the running CPU can tell the shapes of a node's results.

    `known` are the values that follow from shapes alone.
    """
    if node.op in _ALWAYS or any(values[v].shape == UNKNOWN for v in node.inputs if v != ABSENT):
        return True
    deciding = [node.inputs[i] for i in _SHAPE_OPERANDS.get(node.op, ()) if i < len(node.inputs)]
    return any(v != ABSENT and v not in known and not values[v].is_constant for v in deciding)
