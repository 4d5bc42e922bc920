"""The model as plain data, and its partitioning."""

from litegpu.graph.ir import ABSENT, DType, Graph, Node, Quantization, Stage, Value

__all__ = ["ABSENT", "DType", "Graph", "Node", "Quantization", "Stage", "Value"]
