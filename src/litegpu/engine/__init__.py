"""From a graph to something that runs: layout, kernel choice, memory plan, recording."""

from litegpu.engine.partition import CompiledPartition, compile_partition

__all__ = ["CompiledPartition", "compile_partition"]
