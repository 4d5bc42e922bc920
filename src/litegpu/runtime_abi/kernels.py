"""Runs one operation on constants with the CPU's own kernel, in a separate interpreter."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import LitegpuError
from litegpu.graph import DType, Node, Value
from litegpu.runtime_abi.enums import DTYPES, TfLiteType

if TYPE_CHECKING:
    from litegpu.zoo.writer import ModelWriter, TensorRef

RUNTIMES = (
    "ai_edge_litert.interpreter",
    "tflite_runtime.interpreter",
    "tensorflow.lite.python.interpreter",
)
"""Modules with an `Interpreter`; the first one that is installed is used."""

_RANDOM = frozenset({"MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"})
OPTIONS = {
    "activation": "fused_activation_function",
    "dilation_depth_factor": "dilation_d_factor",
    "dilation_height_factor": "dilation_h_factor",
    "dilation_width_factor": "dilation_w_factor",
    "shape": "new_shape",
    "stride_depth": "stride_d",
    "stride_height": "stride_h",
    "stride_width": "stride_w",
}
"""File options by the names of parameters, if these differ."""
_NEWER = frozenset({"quantized_bias_type"})
"""Options that are read only from newer versions of nodes: see `params`."""
_TYPES = _NEWER | {"idx_out_type", "in_data_type", "out_data_type", "out_type", "output_type"}
NO_PARAMETERS = frozenset({"quant_spec"})
"""Options that the runtime's parameter structs lack."""


def compute(
    node: Node, values: Mapping[int, Value], most_bytes: int
) -> list[npt.NDArray[Any]] | None:
    """Return what the CPU's kernel computes from a node's constant inputs.

    None if the kernel is not deterministic or runs other graphs, if the runtime rejects the node or
    its results have more than `most_bytes`, and if this process has loaded no runtime, or one that
    cannot write such a model.
    """
    runtime = next(filter(None, map(sys.modules.get, RUNTIMES)), None)
    resolvers = getattr(runtime, "OpResolverType", None)
    if runtime is None or resolvers is None or node.op in _RANDOM:
        return None
    try:
        content = _written(node, values)
        if content is None:
            return None
        interpreter = runtime.Interpreter(
            model_content=content,
            num_threads=1,
            experimental_op_resolver_type=resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        interpreter.allocate_tensors()
        if _bytes_of(interpreter) > most_bytes:
            return None
        interpreter.invoke()
        if _bytes_of(interpreter) > most_bytes:
            return None  # its shapes are known only now
        return [interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()]
    except (LitegpuError, RuntimeError, TypeError, ValueError):
        return None


def _bytes_of(interpreter: Any) -> int:
    details = interpreter.get_output_details()
    return sum(math.prod(map(int, d["shape"])) * np.dtype(d["dtype"]).itemsize for d in details)


def _written(node: Node, values: Mapping[int, Value]) -> bytes | None:
    """Return a model of one node, None if not all of its options are known."""
    from litegpu.zoo.writer import ModelWriter

    options = options_of(node)
    if options is None:
        return None
    writer = ModelWriter()
    inputs = [_constant(writer, values[v]) for v in node.inputs]
    outputs = [values[v] for v in node.outputs]
    results = writer.multi(
        node.op,
        inputs,
        [[max(size, 1) for size in value.shape] for value in outputs],
        options=options,
        version=node.version,
        dtypes=[value.dtype.value for value in outputs],
        quantizations=[value.quantization for value in outputs],
    )
    writer.output(*results)
    return writer.build()


def _constant(writer: ModelWriter, value: Value) -> TensorRef:
    found = value.blockwise or value.quantization
    return writer.constant(np.asarray(value.data), value.dtype.value, quantization=found)


def options_of(node: Node) -> dict[str, Any] | None:
    """Return a node's options as in a file; None if a parameter is not known."""
    from litegpu.zoo import schema

    names = set(schema.option_names(node.op) - NO_PARAMETERS - _NEWER)
    found = {}
    for name, value in node.params.items():
        name = OPTIONS.get(name, name)
        if name in _TYPES:
            if value == TfLiteType.NOTYPE:  # the file has no options for this node
                names.discard(name)
                continue
            value = DTYPES.get(value, DType.OTHER).value
        found[name] = value
    others = any(name.endswith("subgraph_index") for name in names)
    return None if others or not names <= found.keys() else {name: found[name] for name in names}
