"""Data classes for the model's graph, and functions that divide a graph into partitions."""

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
    Step,
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
    "Step",
    "Value",
]
