"""Changes a model's numbers by about an ulp, including intermediate values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fuzzing import mutations
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import schema


def nudged_model(content: bytes, random: np.random.Generator, ulp: float) -> bytes:
    """Return a model whose constants and results are changed by that much or not at all."""
    model = mutations.parse(content)
    draft = mutations.Draft(model, random)
    _nudge_results(draft, ulp, _shapes(content))
    for tensor in model.subgraphs[0].tensors:
        with contextlib.suppress(mutations.NotApplicableError):
            found = draft.elements(tensor)
            if found.dtype == np.float32:
                with np.errstate(all="ignore"):
                    found *= (1 + ulp * random.integers(-1, 2, found.shape)).astype(np.float32)
                draft.give(tensor, found.tobytes())
    return mutations.pack(model)


def _shapes(content: bytes) -> dict[int, tuple[int, ...]]:
    """Return the shapes that the runtime gives to tensors, as far as it knows them beforehand."""
    details = runtime.interpreter(content, builtin_kernels=True).get_tensor_details()
    return {each["index"]: tuple(map(int, each["shape"])) for each in details}


def _nudge_results(
    draft: mutations.Draft, ulp: float, shapes: Mapping[int, tuple[int, ...]]
) -> None:
    """Let a MUL follow every node, by a factor for each element of its float results."""
    tables, graph = schema.tables(), draft.graph
    code = tables.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.members("BuiltinOperator")["MUL"]
    code.version = 1
    draft.model.operatorCodes.append(code)
    members = schema.members("BuiltinOperator")
    summing = {
        number
        for number, each in enumerate(draft.model.operatorCodes)
        if max(each.builtinCode, each.deprecatedBuiltinCode) in {members[name] for name in _SUMS}
    }
    operators, graph.operators = graph.operators, []
    for operator in operators:
        graph.operators.append(operator)
        operator.outputs = list(operator.outputs)
        for index, target in enumerate(operator.outputs):
            if not 0 <= target < len(graph.tensors):
                continue
            tensor = graph.tensors[target]
            if tensor.type != _FLOAT32 or tensor.isVariable or draft.data(tensor):
                continue
            shape = shapes.get(int(target), ())
            # The CPU adds one by one: sums of n terms are off by the root of n ulps.
            size = ulp * _terms(operator, shape, shapes, summing) ** 0.5
            factors = 1 + size * draft.random.integers(-1, 2, shape if _is_small(shape) else ())
            operator.outputs[index] = _tensor(draft, tensor.shape)
            multiply = tables.OperatorT()
            multiply.opcodeIndex = len(draft.model.operatorCodes) - 1
            multiply.inputs = [
                operator.outputs[index],
                _constant(draft, factors.astype(np.float32)),
            ]
            multiply.outputs = [target]
            multiply.builtinOptionsType = schema.members("BuiltinOptions")["MulOptions"]
            multiply.builtinOptions = tables.MulOptionsT()
            graph.operators.append(multiply)


def _terms(
    operator: Any,
    shape: tuple[int, ...],
    shapes: Mapping[int, tuple[int, ...]],
    summing: Collection[int],
) -> float:
    """Estimate how many terms an element of a result is the sum of."""
    if operator.opcodeIndex not in summing:
        return 1.0
    read = sum(math.prod(shapes.get(int(index), ())) for index in operator.inputs)
    return float(max(read / max(math.prod(shape), 1), 1.0))


_SUMS = (
    *("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"),
    *("SUM", "MEAN", "AVERAGE_POOL_2D"),
)
_FLOAT32 = 0
"""The number of this type in the schema."""


def _is_small(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) <= 1 << 18


def _tensor(draft: mutations.Draft, shape: Sequence[int]) -> int:
    """Add a tensor of floats and return its number."""
    tensor = schema.tables().TensorT()
    tensor.shape, tensor.type = shape, _FLOAT32
    draft.graph.tensors.append(tensor)
    return len(draft.graph.tensors) - 1


def _constant(draft: mutations.Draft, values: np.ndarray) -> int:
    number = _tensor(draft, values.shape)
    draft.give(draft.graph.tensors[number], values.tobytes())
    return number
