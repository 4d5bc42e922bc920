"""From a graph to something that runs: layout, kernel choice, memory plan, program."""

from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.partition import compile_partition

__all__ = ["CompiledPartition", "compile_partition"]
