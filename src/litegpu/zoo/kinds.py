"""The kinds of models in guides about delegates: float32, float16 and quantized models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from litegpu.graph import Quantization
from litegpu.zoo import schema
from litegpu.zoo.writer import ModelWriter

FLOAT32, FLOAT16, DYNAMIC, INTEGER, TRAINED = KINDS = (
    "float32",
    "float16 weights",
    "dynamic range",
    "integer",
    "quantization-aware training",
)

_WEIGHTS = {"FLOAT32", "FLOAT16", "INT2", "INT4", "INT8", "UINT8"}
_STORED = {DYNAMIC: "int8", INTEGER: "int8", TRAINED: "uint8"}
_COMPUTED = {INTEGER: "int8", TRAINED: "uint8"}
_HYBRID_VERSION = 4
"""The version of FULLY_CONNECTED that supports all quantized tensors of these models."""


def sample(kind: str) -> bytes:
    """Return a model of the requested kind, with one FULLY_CONNECTED operation."""
    writer = ModelWriter(float16_weights=kind == FLOAT16)
    dtype, data = _COMPUTED.get(kind, "float32"), np.ones((8, 16), np.float32)
    scale = Quantization((0.05,), (0,))
    quantization = scale if kind in _COMPUTED else None
    x = writer.input((1, 16), dtype, quantization=quantization)
    if stored := _STORED.get(kind):
        weights = writer.constant(data, stored, quantization=scale)
    else:
        weights = writer.weights(data, name="weights")
    y = writer.op(
        "FULLY_CONNECTED",
        [x, weights],
        [(1, 8)],
        options={"weights_format": "DEFAULT"},
        version=_HYBRID_VERSION if stored else 1,
        dtype=dtype,
        quantization=quantization,
    )
    writer.output(y)
    return writer.build()


def kind_of(content: bytes) -> str:
    """Return the kind of a model, which is the kind of most of its operations with weights.

    Args:
        content: a .tflite file that the runtime has accepted.

    Both post-training quantization and quantization-aware training write int8 files, which count as
    INTEGER. Only quantization-aware training writes uint8 files, and float files with FAKE_QUANT
    operations.
    """
    tables = schema.tables()
    model = tables.ModelT.InitFromObj(tables.Model.GetRootAs(content, 0))
    codes = [
        max(code.deprecatedBuiltinCode, code.builtinCode) for code in _each(model.operatorCodes)
    ]
    if tables.BuiltinOperator.FAKE_QUANT in codes:
        return TRAINED
    unpacks = [code == tables.BuiltinOperator.DEQUANTIZE for code in codes]
    found = Counter(kind for graph in model.subgraphs for kind in _kinds(model, graph, unpacks))
    return found.most_common(1)[0][0] if found else FLOAT32


def _kinds(model: Any, graph: Any, unpacks: list[bool]) -> Iterator[str]:
    """Yield the kind of each operation with weights (constants of two or more dimensions).

    `unpacks` maps each operator code to whether it converts weights to floats.
    """
    types = {number: name for name, number in vars(schema.tables().TensorType).items()}
    stored = {
        index: types[tensor.type]
        for index, tensor in enumerate(_each(graph.tensors))
        if _is_constant(model.buffers[tensor.buffer]) and types[tensor.type] in _WEIGHTS
    }
    for operator in _each(graph.operators):
        weights = [i for i in _each(operator.inputs) if i in stored and _rank(graph.tensors[i]) > 1]
        if not weights or not len(_each(operator.outputs)):
            continue
        if unpacks[operator.opcodeIndex]:
            stored[operator.outputs[0]] = stored[weights[0]]
            continue
        yield _kind(stored[weights[0]], types[graph.tensors[operator.outputs[0]].type])


def _each(items: Any) -> Any:
    """Return a list from a parsed file, which represents an empty list as None."""
    return () if items is None else items


def _is_constant(buffer: Any) -> bool:
    """Whether a buffer has contents, in the tables or, in a large file, after the tables."""
    return buffer.offset > 1 or len(_each(buffer.data)) > 0


def _rank(tensor: Any) -> int:
    return len(_each(tensor.shape))


def _kind(weights: str, results: str) -> str:
    if results == "UINT8":
        return TRAINED
    if results in ("INT8", "INT16"):
        return INTEGER
    return {"FLOAT32": FLOAT32, "FLOAT16": FLOAT16}.get(weights, DYNAMIC)
