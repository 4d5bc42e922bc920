"""The model as plain data, and its partitioning."""

from litegpu.graph.ir import ABSENT, SELF, DType, EpilogueOp, Graph, Node, Quantization, Value

__all__ = ["ABSENT", "SELF", "DType", "EpilogueOp", "Graph", "Node", "Quantization", "Value"]
