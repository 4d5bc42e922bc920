"""Runs one op on constants with the CPU's kernel, in a temporary interpreter."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import LitegpuError
from litegpu.graph import DType, Node, Quantization, Value
from litegpu.runtime_abi.enums import DTYPES, TfLiteType
from litegpu.runtime_abi.params import BIAS_TYPE, BIAS_TYPE_SINCE

if TYPE_CHECKING:
    from litegpu.zoo.writer import ModelWriter, TensorRef

RUNTIMES = (
    "ai_edge_litert.interpreter",
    "tflite_runtime.interpreter",
    "tensorflow.lite.python.interpreter",
)
"""Modules with an `Interpreter`; litegpu uses the first module that is installed."""

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
"""The names of options in the file, for parameters whose names differ in the runtime."""
_NEWER = frozenset({BIAS_TYPE})
"""Options that litegpu reads only for nodes of newer versions; see `params`."""
_TYPES = _NEWER | {"idx_out_type", "in_data_type", "out_data_type", "out_type", "output_type"}
NO_PARAMETERS = frozenset({"quant_spec"})
"""Options that the runtime's parameter structs lack."""


_own = threading.local()


@contextmanager
def own_interpreter() -> Iterator[None]:
    """Mark interpreters that this thread creates as litegpu's own: `accelerate` leaves them."""
    before = is_own_interpreter()
    _own.value = True
    try:
        yield
    finally:
        _own.value = before


def is_own_interpreter() -> bool:
    """Return whether litegpu itself creates the interpreters of this thread at present."""
    return getattr(_own, "value", False)


def runtime() -> ModuleType | None:
    """Return the runtime that this process has loaded; None in programs not written in Python."""
    return next(filter(None, map(sys.modules.get, RUNTIMES)), None)


def compute(
    node: Node, values: Mapping[int, Value], most_bytes: int
) -> list[npt.NDArray[Any]] | None:
    """Return the results of the CPU's kernel for a node's constant inputs.

    Returns None if the kernel is not deterministic or runs other graphs. Returns None if the
    runtime rejects the node, or if the results have more than `most_bytes`. Returns None also if
    this process has loaded no runtime, or a runtime that cannot write such a model.
    """
    loaded = runtime()
    resolvers = getattr(loaded, "OpResolverType", None)
    if loaded is None or resolvers is None or node.op in _RANDOM:
        return None
    try:
        content = _written(node, values)
        if content is None:
            return None
        with own_interpreter():
            interpreter = loaded.Interpreter(
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


@functools.cache
def sums_without_bias(stated: int) -> TfLiteType | None:
    """Return the accumulator dtype of an INT16 FULLY_CONNECTED without a bias.

    `stated` is the code of the dtype that the node states. Returns None if this process has loaded
    no runtime, or a runtime that lacks the parameter. For the test, the runtime computes 85 * 0.75
    / 128, which is below 0.5. With 32-bit accumulators the result is 1, because the runtime rounds
    a 32-bit sum before the shift.
    """
    one, factor = Quantization((1.0,), (0,)), Quantization((0.75 / 128,), (0,))
    values = {
        0: Value(0, "", (1, 1), DType.INT16, np.array([[85]], np.int16), quantization=one),
        1: Value(1, "", (1, 1), DType.INT8, np.array([[1]], np.int8), quantization=factor),
        2: Value(2, "", (1, 1), DType.INT16, quantization=one),
    }
    options = {
        "activation": "none",
        "weights_format": 0,
        "keep_num_dims": False,
        "asymmetric_quantize_inputs": False,
        BIAS_TYPE: stated,
    }
    op = "FULLY_CONNECTED"
    node = Node(0, op, BIAS_TYPE_SINCE[op], (0, 1), (2,), options)
    found = compute(node, values, 2)
    if found is None:
        return None
    return TfLiteType.INT32 if found[0].item() else TfLiteType.INT64


def _bytes_of(interpreter: Any) -> int:
    details = interpreter.get_output_details()
    return sum(math.prod(map(int, d["shape"])) * np.dtype(d["dtype"]).itemsize for d in details)


def _written(node: Node, values: Mapping[int, Value]) -> bytes | None:
    """Return the file of a model with only this node; None if one of its options is unknown."""
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
    """Return a node's options by their names in a file; None if a parameter is unknown."""
    from litegpu.zoo import schema

    names = set(schema.option_names(node.op) - NO_PARAMETERS - _NEWER) | _NEWER & {*node.params}
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
