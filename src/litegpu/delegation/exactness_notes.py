"""Notes on how exact quantized results compare with the results of this machine's CPU."""

from __future__ import annotations

import logging
from functools import cache

from litegpu.graph import Graph
from litegpu.graph.partition import PartitionChoice
from litegpu.host import cpu_features as host_cpu
from litegpu.ops.common.types import is_quantized

_log = logging.getLogger("litegpu")


def exactness_notes(graph: Graph, choice: PartitionChoice) -> list[str]:
    """Return a note about quantized nodes that the GPU computes exactly; log the note once."""
    reason = host_cpu.other_rounding()
    delegated = {index for subset in choice.delegated for index in subset.nodes}
    exact = any(node.index in delegated and is_quantized(graph, node) for node in graph.nodes)
    if not reason or not exact:
        return []
    _log_once(reason)
    return [reason]


@cache
def _log_once(text: str) -> None:
    _log.warning("%s", text)
