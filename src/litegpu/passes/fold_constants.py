"""Folds DEQUANTIZE of constants, the converter's way to store float16 weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph
from litegpu.passes.base import Editor, PassResult, label


def fold_constants(graph: Graph) -> PassResult:
    """Give the outputs of such nodes their data and drop the nodes."""
    edit = Editor(graph)
    for place, node in enumerate(graph.nodes):
        if node.op != "DEQUANTIZE":
            continue
        source = edit.values[node.inputs[0]]
        if source.data is None or source.dtype is not DType.FLOAT16:
            edit.declined.append(f"{label(node)}: its input is no float16 constant")
            continue
        target = edit.values[node.outputs[0]]
        # float16 weights stay float16 until a kernel packs them: half the memory to read.
        data = np.asarray(source.data).reshape(target.shape)
        edit.values[target.id] = replace(target, data=data, dtype=DType(data.dtype.name))
        edit.nodes[place] = None
        edit.applied.append(f"{label(node)} folded")
    return edit.result()
