"""Folds nodes whose result is known before the model runs: DEQUANTIZE and RESHAPE of constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph
from litegpu.passes.base import Editor, PassResult, label


def fold_constants(graph: Graph) -> PassResult:
    """Give the outputs of such nodes their data and drop the nodes."""
    edit = Editor(graph)
    for place, node in enumerate(graph.nodes):
        source = edit.values[node.inputs[0]]
        if node.op not in ("DEQUANTIZE", "RESHAPE", "SQUEEZE") or source.data is None:
            continue
        for v in node.outputs:
            target = edit.values[v]
            # float16 weights stay float16 until a kernel packs them: half the memory to read.
            data = np.asarray(source.data).reshape(target.shape)
            edit.values[v] = replace(target, data=data, dtype=_float_type(data))
        edit.nodes[place] = None
        edit.applied.append(f"{label(node)} folded")
    return edit.result()


def _float_type(data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> DType:
    return DType(data.dtype.name)
