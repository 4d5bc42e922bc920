"""The model as plain data, and its partitioning."""

from litegpu.graph.ir import ABSENT, SELF, DType, Graph, Node, Quantization, Stage, Value

__all__ = ["ABSENT", "SELF", "DType", "Graph", "Node", "Quantization", "Stage", "Value"]
