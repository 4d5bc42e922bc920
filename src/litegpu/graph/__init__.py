"""The model as plain data, and how it is divided into partitions."""

from litegpu.graph.ir import (
    ABSENT,
    PACKED_TYPES,
    SELF,
    Blockwise,
    DType,
    EpilogueOp,
    Graph,
    Node,
    Quantization,
    Value,
)

__all__ = [
    "ABSENT",
    "PACKED_TYPES",
    "SELF",
    "Blockwise",
    "DType",
    "EpilogueOp",
    "Graph",
    "Node",
    "Quantization",
    "Value",
]
