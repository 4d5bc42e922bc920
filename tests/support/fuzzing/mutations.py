"""Damages models through the schema's objects: files remain well formed, but not valid."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.zoo import schema
from litegpu.zoo.objects import pack as pack
from litegpu.zoo.objects import parse as parse

INTEGERS = (0, 1, -1, 2, 3, 4, 5, 7, 8, -2, 16, 100, 127, -128, 1 << 20, 2**31 - 1, -(2**31))
FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, -0.0, 1e-40, 1e30, -3e38, np.inf, -np.inf, np.nan)
SIZES = (0, 1, 2, 3, 4, 5, 8, 9, 17, -1)
_ELEMENTS: dict[str, Any] = {
    **{"FLOAT32": np.float32, "FLOAT16": np.float16, "FLOAT64": np.float64, "INT8": np.int8},
    **{"UINT8": np.uint8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64},
    **{"BOOL": np.bool_, "COMPLEX64": np.complex64, "UINT32": np.uint32},
}
_OTHERS = ("STRING", "UINT64", "VARIANT", "UINT16", "INT4")
_MAX_BYTES = 1 << 22


class NotApplicableError(Exception):
    """A mutation found nothing to change in a model."""


@dataclass
class Draft:
    """A model as objects that a mutation changes, with the source of chance."""

    model: Any
    random: np.random.Generator

    @property
    def graph(self) -> Any:
        """The main subgraph."""
        return self.model.subgraphs[0]

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Draw one of several things; none is NotApplicableError."""
        if len(choices) == 0:
            raise NotApplicableError
        return choices[int(self.random.integers(len(choices)))]

    def operator(self) -> Any:
        """Draw an operation."""
        return self.one_of(self.graph.operators)

    def tensor(self) -> Any:
        """Draw a tensor."""
        return self.one_of(self.graph.tensors)

    def constant(self) -> Any:
        """Draw a tensor with data."""
        return self.one_of([t for t in self.graph.tensors if len(self.data(t))])

    def data(self, tensor: Any) -> bytes:
        """Return the bytes of a tensor; none if it is not a constant."""
        found = self.model.buffers[tensor.buffer].data
        return b"" if found is None else bytes(found)

    def elements(self, tensor: Any) -> Any:
        """Return a copy of a constant's elements, if their type is a plain one."""
        kind = _ELEMENTS.get(_type_name(tensor.type))
        data = self.data(tensor)
        if kind is None or len(data) % np.dtype(kind).itemsize or not data:
            raise NotApplicableError
        return np.frombuffer(data, kind).copy()

    def give(self, tensor: Any, data: bytes) -> None:
        """Let a tensor have a buffer of its own."""
        if len(data) > _MAX_BYTES:
            raise NotApplicableError
        buffer = schema.tables().BufferT()
        buffer.data = np.frombuffer(data, np.uint8)
        tensor.buffer = len(self.model.buffers)
        self.model.buffers.append(buffer)


def _type_name(code: int) -> str:
    names = {number: name for name, number in schema.members("TensorType").items()}
    return names.get(code, "")


def _shape(tensor: Any) -> list[int]:
    return [] if tensor.shape is None else [int(size) for size in tensor.shape]


def option(draft: Draft) -> str:
    """Change a field of an operation's options."""
    operators = [op for op in draft.graph.operators if op.builtinOptions is not None]
    table = draft.one_of(operators).builtinOptions
    fields = {name: value for name, value in vars(table).items() if not isinstance(value, str)}
    name = draft.one_of(sorted(fields))
    before = fields[name]
    setattr(table, name, _other_value(draft, before))
    return f"{type(table).__name__[:-1]}.{name}: {before} -> {getattr(table, name)}"


def _other_value(draft: Draft, before: Any) -> Any:
    if isinstance(before, bool):
        return not before
    if isinstance(before, float):
        return float(draft.one_of(FLOATS))
    if isinstance(before, int):
        return int(draft.one_of((before + 1, before - 1, *INTEGERS)))
    sizes = [] if before is None else [int(each) for each in before]
    return _other_list(draft, sizes)


def _other_list(draft: Draft, before: list[int]) -> list[int]:
    after = list(before)
    kind = draft.one_of(("change", "change", "change", "add", "remove", "turn"))
    position = int(draft.random.integers(len(after) + 1))
    if kind == "turn":
        draft.random.shuffle(after)
    elif kind == "add" or position == len(after):
        after.insert(position, int(draft.one_of(SIZES)))
    elif kind == "remove":
        del after[position]
    else:
        near = (after[position] + 1, after[position] - 1, after[position] * 2)
        after[position] = int(draft.one_of((*near, *SIZES)))
    return after


def options_missing(draft: Draft) -> str:
    """Drop the options of an operation, or give it those of another kind."""
    operator = draft.operator()
    other = draft.one_of(("", "Conv2DOptions", "ReshapeOptions", "Pool2DOptions", "AddOptions"))
    number = schema.members("BuiltinOptions")[other] if other else 0
    operator.builtinOptionsType = number
    operator.builtinOptions = getattr(schema.tables(), f"{other}T")() if other else None
    return f"options table -> {other or 'none'}"


def custom_options(draft: Draft) -> str:
    """Change, cut or drop the bytes of a custom operation's options."""
    operators = [op for op in draft.graph.operators if op.customOptions is not None]
    operator = draft.one_of(operators)
    data = bytearray(bytes(operator.customOptions))
    if not data:
        raise NotApplicableError
    position = int(draft.random.integers(len(data)))
    kind = draft.one_of(("byte", "byte", "word", "cut"))
    if kind == "cut":
        del data[position:]
    elif kind == "byte":
        data[position] = int(draft.random.integers(256))
    else:
        data[position : position + 4] = struct.pack("<i", draft.one_of(INTEGERS))
    operator.customOptions = np.frombuffer(bytes(data), np.uint8)
    return f"custom options: {kind} at {position}"


def shape(draft: Draft) -> str:
    """Change a tensor's shape; the data of a constant follows, mostly."""
    tensor = draft.tensor()
    before = _shape(tensor)
    after = _other_list(draft, before)
    data = draft.data(tensor)
    tensor.shape = after
    if data and draft.random.random() < 0.8:
        elements = draft.elements(tensor)
        size = max(int(np.prod([max(size, 0) for size in after], dtype=np.int64)), 0)
        if size * elements.itemsize > _MAX_BYTES:
            raise NotApplicableError
        draft.give(tensor, np.resize(elements, size).tobytes())
    return f"shape of {tensor.name}: {before} -> {after}"


def all_shapes(draft: Draft) -> str:
    """Change the same dimension of all tensors without data that have it."""
    tensors = [t for t in draft.graph.tensors if not draft.data(t) and _shape(t)]
    position = int(draft.random.integers(1, 6))
    size = int(draft.one_of(SIZES[1:]))
    for tensor in tensors:
        dims = _shape(tensor)
        if len(dims) >= position:
            dims[-position] = size
            tensor.shape = dims
    return f"all shapes: dimension {-position} -> {size}"


def rank(draft: Draft) -> str:
    """Give a tensor another rank without other elements."""
    tensor = draft.tensor()
    before = _shape(tensor)
    after = [n for n in before if n != 1] if draft.random.random() < 0.4 else list(before)
    while draft.random.random() < 0.5:
        after.insert(int(draft.random.integers(len(after) + 1)), 1)
    tensor.shape = after
    return f"shape of {tensor.name}: {before} -> {after}"


def signature(draft: Draft) -> str:
    """Make a dimension of a tensor one that only the running model knows."""
    tensor = draft.tensor()
    dims = _shape(tensor)
    if not dims:
        raise NotApplicableError
    dims[int(draft.random.integers(len(dims)))] = -1
    tensor.shapeSignature = dims
    return f"signature of {tensor.name}: {dims}"


def element_type(draft: Draft) -> str:
    """Change a tensor's type; the data of a constant follows, mostly."""
    tensor = draft.tensor()
    before = _type_name(tensor.type)
    name = draft.one_of([*_ELEMENTS, *_OTHERS])
    if draft.data(tensor) and name in _ELEMENTS and draft.random.random() < 0.8:
        elements = np.nan_to_num(draft.elements(tensor))
        with np.errstate(all="ignore"):
            draft.give(tensor, np.asarray(np.real(elements)).astype(_ELEMENTS[name]).tobytes())
    tensor.type = schema.members("TensorType")[name]
    return f"type of {tensor.name}: {before} -> {name}"


def elements(draft: Draft) -> str:
    """Change elements of a constant."""
    tensor = draft.constant()
    found = draft.elements(tensor)
    position = int(draft.random.integers(len(found)))
    before = found[position]
    pool = FLOATS if found.dtype.kind in "fc" else (int(found[position]) + 1, *INTEGERS)
    with np.errstate(all="ignore"):
        found[position : position + 1] = np.asarray([draft.one_of(pool)]).astype(found.dtype)
    draft.give(tensor, found.tobytes())
    return f"{tensor.name}[{position}]: {before} -> {found[position]}"


def buffer(draft: Draft) -> str:
    """Cut the data of a constant, drop it, or let the tensor be computed by nobody."""
    tensor = draft.constant()
    kind = draft.one_of(("cut", "extend", "drop", "input"))
    if kind in ("cut", "extend"):
        data = draft.data(tensor)
        draft.give(tensor, data[: len(data) // 2] if kind == "cut" else data + b"\0" * 16)
    else:
        tensor.buffer = 0
    if kind == "input":
        draft.graph.inputs = [*draft.graph.inputs, draft.graph.tensors.index(tensor)]
    return f"data of {tensor.name}: {kind}"


def into_constant(draft: Draft) -> str:
    """Turn an input of the model into a constant."""
    position = draft.one_of(list(draft.graph.inputs))
    tensor = draft.graph.tensors[position]
    kind = _ELEMENTS.get(_type_name(tensor.type))
    count = int(np.prod([max(size, 0) for size in _shape(tensor)], dtype=np.int64))
    if kind is None or not 0 < count <= 1 << 16:
        raise NotApplicableError
    draft.give(tensor, np.asarray(draft.random.uniform(-2, 2, count)).astype(kind).tobytes())
    draft.graph.inputs = [each for each in draft.graph.inputs if each != position]
    return f"{tensor.name} is a constant"


def operands(draft: Draft) -> str:
    """Change the tensors that an operation reads or makes."""
    operator = draft.operator()
    side = draft.one_of(("inputs", "inputs", "inputs", "outputs"))
    found = [int(each) for each in getattr(operator, side)]
    count = len(draft.graph.tensors)
    kind = draft.one_of(("replace", "replace", "absent", "remove", "add", "swap", "beyond"))
    if not found:
        raise NotApplicableError
    position = int(draft.random.integers(len(found)))
    if kind == "remove":
        del found[position]
    elif kind == "add":
        found.append(int(draft.random.integers(-1, count)))
    elif kind == "swap":
        draft.random.shuffle(found)
    else:
        other = {"absent": -1, "beyond": count + 3}.get(kind, int(draft.random.integers(count)))
        found[position] = other
    setattr(operator, side, found)
    return f"{side} of an operation: {kind} at {position} -> {found}"


def operation(draft: Draft) -> str:
    """Change the version or the kind of an operation."""
    code = draft.one_of(draft.model.operatorCodes)
    if draft.random.random() < 0.5:
        before = code.version
        code.version = int(draft.one_of((0, 1, 2, 3, 4, 5, 6, 9, 100)))
        return f"version {before} -> {code.version}"
    before = code.builtinCode
    code.builtinCode = int(draft.random.integers(0, 165))
    code.deprecatedBuiltinCode = min(code.builtinCode, schema.LAST_SMALL_OPCODE)
    return f"operation {before} -> {code.builtinCode}"


def quantization(draft: Draft) -> str:
    """Give a tensor a scale and a zero point, several or broken ones too."""
    tensor = draft.tensor()
    count = int(draft.one_of((0, 1, 1, 2, 3)))
    found = schema.tables().QuantizationParametersT()
    found.scale = [float(draft.one_of((0.5, 0.1, *FLOATS[:4]))) for _ in range(count)]
    found.zeroPoint = [int(draft.one_of((0, 3, -1, 128))) for _ in range(count)]
    found.quantizedDimension = int(draft.one_of((0, 1, 3, -1, 9)))
    tensor.quantization = found
    return f"quantization of {tensor.name}: {found.scale}"


def variable(draft: Draft) -> str:
    """Turn a tensor into a variable one or back."""
    tensor = draft.tensor()
    tensor.isVariable = not tensor.isVariable
    return f"{tensor.name} is {'' if tensor.isVariable else 'not '}variable"


def ends(draft: Draft) -> str:
    """Change the inputs or outputs of the model."""
    side = draft.one_of(("inputs", "outputs"))
    found = [int(each) for each in getattr(draft.graph, side)]
    if draft.random.random() < 0.5 and found:
        del found[int(draft.random.integers(len(found)))]
    else:
        tensors = draft.graph.tensors
        # The runtime would write an input that is a constant into the file's bytes, and run the
        # readers of one that a node makes before that node.
        output = {int(each) for operator in draft.graph.operators for each in operator.outputs}
        free = [
            i
            for i, t in enumerate(tensors)
            if side == "outputs" or not (draft.data(t) or i in output)
        ]
        found.append(draft.one_of(free))
    setattr(draft.graph, side, found)
    return f"{side} of the model: {found}"


MUTATIONS: tuple[Callable[[Draft], str], ...] = (
    *(option, option, option, option, options_missing, custom_options),
    *(shape, shape, shape, all_shapes, rank, rank, signature, element_type),
    *(elements, elements, elements, buffer, into_constant, operands, operation),
    *(quantization, variable, ends),
)


def without_subnormals(content: bytes) -> bytes:
    """Return a model whose constants and options below the normal range are zeros."""
    draft = Draft(parse(content), np.random.default_rng(0))
    for tensor in draft.graph.tensors:
        with contextlib.suppress(NotApplicableError):
            found = draft.elements(tensor)
            small = (found != 0) & (np.abs(found) < np.finfo(np.float32).tiny)
            if found.dtype == np.float32 and np.any(small):
                found[small] = 0
                draft.give(tensor, found.tobytes())
    for operator in draft.graph.operators:
        for name, value in vars(operator.builtinOptions or object).items():
            if isinstance(value, float) and 0 < abs(value) < np.finfo(np.float32).tiny:
                setattr(operator.builtinOptions, name, 0.0)
    return pack(draft.model)


def mutate(content: bytes, random: np.random.Generator) -> tuple[bytes, list[str]]:
    """Return a damaged model and what was changed; mostly one thing, at times several."""
    for _ in range(100):
        draft = Draft(parse(content), random)
        count = int(draft.one_of((1, 1, 1, 2, 3)))
        try:
            done = [draft.one_of(MUTATIONS)(draft) for _ in range(count)]
            return pack(draft.model), done
        except (NotApplicableError, struct.error, TypeError, OverflowError, ValueError):
            continue  # nothing to change, or a number that the file format cannot hold
    return content, []
