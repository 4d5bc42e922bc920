"""Stores a network of floats in other ways: weights as float16 or int8, or everything as integers.

What a converter does after training: the ranges of all values are those of one run on the CPU.
Operations without a form for integers stay among floats, between DEQUANTIZE and QUANTIZE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cases.base import Array
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import objects, schema

WEIGHTED: Mapping[str, tuple[int, int, int]] = {
    "CONV_2D": (0, 1, 0),
    "DEPTHWISE_CONV_2D": (0, 1, 3),
    "FULLY_CONNECTED": (0, 1, 0),
    "TRANSPOSE_CONV": (2, 1, 0),
}
"""Positions of the values and of the weights, whose outputs lie along an axis; a bias follows."""
_LIKE_INPUT = frozenset(
    {
        *("AVERAGE_POOL_2D", "MAX_POOL_2D", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE"),
        *("STRIDED_SLICE", "SLICE", "PAD", "MIRROR_PAD", "RESIZE_BILINEAR", "GATHER", "SPLIT"),
        *("RESIZE_NEAREST_NEIGHBOR", "SPLIT_V", "UNPACK", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE"),
        *("TILE", "BROADCAST_TO", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "REVERSE_V2"),
        *("REDUCE_MAX", "REDUCE_MIN"),
    }
)
_ALL_ALIKE = frozenset({"CONCATENATION", "PACK", "MAXIMUM", "MINIMUM"})
_OWN_SCALE = frozenset(
    {
        *("ADD", "SUB", "MUL", "MEAN", "SUM", "BATCH_MATMUL", "LEAKY_RELU", "PRELU", "HARD_SWISH"),
        *("RELU", "RELU6", "SQUARED_DIFFERENCE", "ELU", "GELU", "ABS", "RSQRT", "EXP"),
    }
)
_INT8_ALONE = frozenset(
    {"BATCH_MATMUL", "SQUARED_DIFFERENCE", "GELU", "ABS", "RSQRT", "EXP", "ELU"}
)
_FIXED: Mapping[str, tuple[float, int]] = {
    "SOFTMAX": (1 / 256, -128),
    "LOGISTIC": (1 / 256, -128),
    "TANH": (1 / 128, 0),
    "L2_NORMALIZATION": (1 / 128, 0),
    "LOG_SOFTMAX": (16 / 256, 127),
}
_VERSIONS: Mapping[str, int] = {
    **{"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "TRANSPOSE_CONV": 3},
    **{"LEAKY_RELU": 1, "HARD_SWISH": 1, "ELU": 1, "PRELU": 1, "GELU": 1, "ABS": 1, "EXP": 1},
    **{"TILE": 3, "BATCH_MATMUL": 4, "RESHAPE": 1, "SQUEEZE": 1, "EXPAND_DIMS": 1, "RSQRT": 2},
}
"""Versions of operations on int8, where they are not the second; those on uint8 are the first."""
_HYBRID: Mapping[str, int] = {
    **{"CONV_2D": 2, "DEPTHWISE_CONV_2D": 6, "FULLY_CONNECTED": 9, "TRANSPOSE_CONV": 3},
}


@dataclass(frozen=True)
class Scaled:
    """Scales (one, or one for each channel along an axis) and a zero point."""

    scales: tuple[float, ...]
    zero: int = 0
    axis: int = 0

    def stored(self, values: Array, dtype: str) -> Array:
        """Return the integers that stand for values."""
        shape = [1] * values.ndim
        if len(self.scales) > 1:
            shape[self.axis] = -1
        ends = np.iinfo(dtype)
        steps = np.rint(values / np.reshape(self.scales, shape)) + self.zero
        return np.asarray(np.clip(steps, ends.min, ends.max), dtype)


class Storing:
    """A model of floats that becomes another."""

    def __init__(self, content: bytes) -> None:
        """Read a model."""
        self.model = objects.parse(content)
        self.graph = self.model.subgraphs[0]
        self.names = {number: name for name, number in schema.members("BuiltinOperator").items()}
        self.types = schema.members("TensorType")

    def name(self, operator: Any) -> str:
        """Return an operation's name."""
        return self.names[self.model.operatorCodes[operator.opcodeIndex].builtinCode]

    def version(self, operator: Any) -> int:
        """Return an operation's version."""
        return int(self.model.operatorCodes[operator.opcodeIndex].version)

    def is_float(self, index: int) -> bool:
        """Whether a tensor holds float32."""
        return index >= 0 and self.graph.tensors[index].type == self.types["FLOAT32"]

    def scaled(self, index: int) -> bool:
        """Whether a tensor holds integers that stand for floats."""
        found = None if index < 0 else self.graph.tensors[index].quantization
        return found is not None and found.scale is not None and len(found.scale) > 0

    def constant(self, index: int) -> Array | None:
        """Return the elements of a constant of float32; None for any other tensor."""
        if not self.is_float(index):
            return None
        tensor = self.graph.tensors[index]
        data = objects.content(self.model.buffers[tensor.buffer])
        return np.frombuffer(data, np.float32).reshape(tensor.shape) if data else None

    def code(self, name: str, version: int) -> int:
        """Return the number of an operation of some version."""
        number = schema.members("BuiltinOperator")[name]
        for index, code in enumerate(self.model.operatorCodes):
            if (code.builtinCode, code.version) == (number, version):
                return index
        code = schema.tables().OperatorCodeT()
        code.builtinCode, code.version = number, version
        code.deprecatedBuiltinCode = min(number, schema.LAST_SMALL_OPCODE)
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1

    def tensor(
        self, shape: Sequence[int], dtype: str, scaled: Scaled | None = None, data: bytes = b""
    ) -> int:
        """Add a tensor and return its number."""
        tensor = schema.tables().TensorT()
        tensor.name, tensor.hasRank = f"stored_{len(self.graph.tensors)}", True
        tensor.shape, tensor.type = [int(n) for n in shape], self.types[dtype.upper()]
        if scaled is not None:
            found = schema.tables().QuantizationParametersT()
            found.scale = np.asarray(scaled.scales, np.float32)
            found.zeroPoint = np.full(len(scaled.scales), scaled.zero, np.int64)
            found.quantizedDimension = scaled.axis
            tensor.quantization = found
        if data:
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(objects.buffer_of(data))
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def stored(self, values: Array, dtype: str, scaled: Scaled) -> int:
        """Add a constant of integers."""
        data = scaled.stored(values, dtype).tobytes()
        return self.tensor(values.shape, dtype, scaled, data)

    def operator(self, name: str, version: int, source: int, result: int) -> Any:
        """Return a new operation of one input and one output."""
        operator = schema.tables().OperatorT()
        operator.opcodeIndex = self.code(name, version)
        operator.inputs, operator.outputs = [source], [result]
        return operator


def halves(content: bytes) -> bytes:
    """Return a model whose weights are float16 behind DEQUANTIZE."""
    storing, before, decoded = Storing(content), list[Any](), dict[int, int]()
    for operator in storing.graph.operators:
        if storing.name(operator) not in WEIGHTED:
            continue
        operator.inputs = list(operator.inputs)
        for position, index in enumerate(operator.inputs):
            values = storing.constant(index)
            if values is None:
                continue
            if index not in decoded:
                data = values.astype(np.float16).tobytes()
                half = storing.tensor(values.shape, "float16", data=data)
                decoded[index] = storing.tensor(values.shape, "float32")
                before.append(storing.operator("DEQUANTIZE", 2, half, decoded[index]))
            operator.inputs[position] = decoded[index]
    storing.graph.operators = before + list(storing.graph.operators)
    return objects.pack(storing.model)


def dynamic(content: bytes, random: np.random.Generator) -> bytes:
    """Return a model whose weights are int8, beside values of float32."""
    storing = Storing(content)
    for operator in storing.graph.operators:
        name = storing.name(operator)
        if name not in WEIGHTED:
            continue
        _, position, axis = WEIGHTED[name]
        values = storing.constant(operator.inputs[position])
        if values is None:
            continue
        grouped = name == "CONV_2D" and values.shape[3] != _channels(storing, operator)
        per_channel = grouped or name == "DEPTHWISE_CONV_2D" or bool(random.integers(2))
        scaled = _of_weights(values, axis if per_channel else None)
        operator.inputs = list(operator.inputs)
        operator.inputs[position] = storing.stored(values, "int8", scaled)
        version = _HYBRID[name]
        if per_channel:
            version = {"CONV_2D": 5, "FULLY_CONNECTED": 12}.get(name, version)
        if grouped:
            version = 6
        operator.opcodeIndex = storing.code(name, max(version, storing.version(operator)))
    return objects.pack(storing.model)


def quantized(
    content: bytes, inputs: Sequence[Array], dtype: str, random: np.random.Generator
) -> tuple[bytes, tuple[Array, ...]]:
    """Return a model of integers, and the inputs that it takes."""
    converter = _Converter(content, inputs, dtype, random)
    converter.convert()
    return objects.pack(converter.model), converter.inputs


def rounded(content: bytes) -> bytes:
    """Return a model whose constants and results are rounded to half, as a device stores them."""
    storing, operators = Storing(content), list[Any]()
    for tensor in storing.graph.tensors:
        data = objects.content(storing.model.buffers[tensor.buffer])
        if tensor.type == storing.types["FLOAT32"] and len(data):
            values = np.frombuffer(data, np.float32)
            with np.errstate(over="ignore"):
                constant = values.astype(np.float16).astype(np.float32)
            tensor.buffer = len(storing.model.buffers)
            storing.model.buffers.append(objects.buffer_of(constant.tobytes()))
    for operator in storing.graph.operators:
        operators.append(operator)
        operator.outputs = list(operator.outputs)
        for position, index in enumerate(operator.outputs):
            result = storing.graph.tensors[index]
            if result.type == storing.types["FLOAT32"] and not result.isVariable:
                wide, half = (storing.tensor(result.shape, each) for each in ("float32", "float16"))
                operator.outputs[position] = wide
                operators.append(storing.operator("CAST", 1, wide, half))
                operators.append(storing.operator("CAST", 1, half, index))
    storing.graph.operators = operators
    return objects.pack(storing.model)


def simulated(content: bytes) -> bytes:
    """Return a quantized model whose operations compute with floats, and whose results are stored.

    So a device does it that takes integers for floats.
    """
    storing, floats, operators = Storing(content), dict[int, int](), list[Any]()
    for operator in storing.graph.operators:
        if storing.name(operator) in ("QUANTIZE", "DEQUANTIZE"):
            operators.append(operator)
            continue
        operator.inputs, operator.outputs = list(operator.inputs), list(operator.outputs)
        for position, index in enumerate(operator.inputs):
            if storing.scaled(index) and index not in floats:
                floats[index], conversion = _real(storing, index)
                operators += conversion
            operator.inputs[position] = floats.get(index, index)
        operators.append(operator)
        for position, index in enumerate(operator.outputs):
            if storing.scaled(index):
                shape = storing.graph.tensors[index].shape
                operator.outputs[position] = storing.tensor(shape, "float32")
                source = operator.outputs[position]
                operators.append(storing.operator("QUANTIZE", 1, source, index))
    storing.graph.operators = operators
    return objects.pack(storing.model)


def _real(storing: Storing, index: int) -> tuple[int, list[Any]]:
    """Add what a tensor of integers stands for: a constant, or a result of DEQUANTIZE."""
    tensor = storing.graph.tensors[index]
    data = objects.content(storing.model.buffers[tensor.buffer])
    if not data:
        result = storing.tensor(tensor.shape, "float32")
        return result, [storing.operator("DEQUANTIZE", 2, index, result)]
    found = tensor.quantization
    dtype = {number: name for name, number in storing.types.items()}[tensor.type].lower()
    shape = [1] * len(tensor.shape)
    if len(found.scale) > 1:
        shape[found.quantizedDimension] = -1
    stored = np.frombuffer(data, dtype).reshape(tensor.shape).astype(np.float64)
    real = (stored - np.reshape(found.zeroPoint, shape)) * np.reshape(found.scale, shape)
    return storing.tensor(tensor.shape, "float32", data=real.astype(np.float32).tobytes()), []


class _Converter(Storing):
    def __init__(
        self, content: bytes, inputs: Sequence[Array], dtype: str, random: np.random.Generator
    ) -> None:
        super().__init__(content)
        self._dtype, self._random = dtype, random
        self._values = all_tensors(content, inputs)
        self._stored: dict[int, int] = {}
        self._scaled: dict[int, Scaled] = {}
        self._floats: set[int] = set()
        self._operators: list[Any] = []
        self.inputs = tuple(inputs)

    def convert(self) -> None:
        """Convert every operation that has a form for integers."""
        graph, inputs = self.graph, list(self.inputs)
        graph.inputs = list(graph.inputs)
        for position, index in enumerate(graph.inputs):
            if self.is_float(index) and self._random.integers(8):
                graph.inputs[position] = self._whole(index, self._own(index))
                inputs[position] = self._scaled[index].stored(inputs[position], self._dtype)
            else:
                self._floats.add(index)
        self.inputs = tuple(inputs)
        operators, graph.operators = graph.operators, self._operators
        for operator in operators:
            operator.inputs, operator.outputs = list(operator.inputs), list(operator.outputs)
            if not self._convert(operator):
                for index in operator.inputs:
                    self._as_float(index)
                self._floats.update(operator.outputs)
                self._operators.append(operator)
        graph.outputs = [self._stored.get(index, index) for index in graph.outputs]

    def _convert(self, operator: Any) -> bool:
        name = self.name(operator)
        floats = [i for i, index in enumerate(operator.inputs) if self.is_float(index)]
        if not all(map(self.is_float, operator.outputs)) or not floats:
            return False
        sources = [operator.inputs[i] for i in floats]
        if name in WEIGHTED:
            return self._weighted(operator, name)
        if self._dtype == "uint8" and name in _INT8_ALONE:
            return False
        if name not in _LIKE_INPUT | _ALL_ALIKE | _OWN_SCALE | _FIXED.keys():
            return False
        if all(self.constant(index) is not None for index in sources):
            return False
        if name in _LIKE_INPUT:
            wanted = [self._scale_of(sources[0])]
            wanted += [wanted[0]] * (len(sources) - 1)
            results = [wanted[0]] * len(operator.outputs)
        elif name in _ALL_ALIKE:
            result = self._own(operator.outputs[0])
            wanted, results = [result] * len(sources), [result]
        else:
            wanted = [self._scale_of(index) for index in sources]
            results = [self._result(name, index) for index in operator.outputs]
        for position, index, scaled in zip(floats, sources, wanted, strict=True):
            operator.inputs[position] = self._as_whole(index, scaled)
        self._finish(operator, name, results)
        return True

    def _weighted(self, operator: Any, name: str) -> bool:
        position, place, axis = WEIGHTED[name]
        weights = self.constant(operator.inputs[place])
        rest = operator.inputs[max(position, place) + 1 :]
        bias = self.constant(rest[0]) if rest else None
        if weights is None or (rest and bias is None):
            return False
        source = operator.inputs[position]
        scaled = self._scale_of(source)
        per_channel = self._dtype == "int8" and name != "FULLY_CONNECTED"
        found = _of_weights(weights, axis if per_channel else None, self._dtype)
        operator.inputs[position] = self._as_whole(source, scaled)
        operator.inputs[place] = self.stored(weights, self._dtype, found)
        if bias is not None:
            sums = tuple(float(np.float32(scaled.scales[0] * each)) for each in found.scales)
            of_sums = Scaled(sums)
            operator.inputs[-1] = self.tensor(
                bias.shape, "int32", of_sums, of_sums.stored(bias, "int32").tobytes()
            )
        self._finish(operator, name, [self._result(name, operator.outputs[0])])
        return True

    def _finish(self, operator: Any, name: str, results: Sequence[Scaled]) -> None:
        usual = 1 if self._dtype == "uint8" else _VERSIONS.get(name, 2)
        operator.opcodeIndex = self.code(name, max(usual, self.version(operator)))
        operator.outputs = [
            self._whole(index, scaled)
            for index, scaled in zip(operator.outputs, results, strict=True)
        ]
        self._operators.append(operator)

    def _whole(self, index: int, scaled: Scaled) -> int:
        """Add the tensor of integers that stands for one of floats."""
        shape = self._values[index].shape
        self._scaled[index] = scaled
        self._stored[index] = self.tensor(shape, self._dtype, scaled)
        return self._stored[index]

    def _scale_of(self, index: int) -> Scaled:
        return self._scaled.get(index) or self._own(index)

    def _own(self, index: int) -> Scaled:
        """Return a scale that the values of a tensor call for."""
        values = self.constant(index)
        values = self._values[index] if values is None else values
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        # Ranges of training data are a bit larger or smaller.
        factor = float(self._random.uniform(0.8, 1.1))
        ends = np.iinfo(self._dtype)
        scale = float(np.float32(max((high - low) * factor, 1e-3) / 255))
        zero = int(np.clip(round(ends.min - low * factor / scale), ends.min, ends.max))
        return Scaled((scale,), zero)

    def _result(self, name: str, index: int) -> Scaled:
        if name not in _FIXED:
            return self._own(index)
        scale, zero = _FIXED[name]
        return Scaled((scale,), zero + (128 if self._dtype == "uint8" else 0))

    def _as_whole(self, index: int, scaled: Scaled) -> int:
        """Return a tensor's integers of a scale, converted where they are others."""
        values = self.constant(index)
        if values is not None:
            return self.stored(values, self._dtype, scaled)
        if self._scaled.get(index) == scaled:
            return self._stored[index]
        known = index in self._stored
        result = self.tensor(self._values[index].shape, self._dtype, scaled)
        source = self._stored[index] if known else index
        self._operators.append(self.operator("QUANTIZE", 2 if known else 1, source, result))
        if not known:
            self._stored[index], self._scaled[index] = result, scaled
        return result

    def _as_float(self, index: int) -> None:
        """Let a tensor of floats have its elements where only integers were computed."""
        if index in self._stored and index not in self._floats:
            version = 1 if self._dtype == "uint8" else 2
            self._operators.append(self.operator("DEQUANTIZE", version, self._stored[index], index))
            self._floats.add(index)


def all_tensors(content: bytes, inputs: Sequence[Array]) -> dict[int, Array]:
    """Run a model on the CPU and return the elements of the file's tensors.

    The kernels' own tensors, which follow these, are not always written.
    """
    count = len(Storing(content).graph.tensors)
    interpreter = runtime.interpreter(content, builtin_kernels=True, keep_tensors=True)
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    found = {}
    for index in range(count):
        try:
            found[index] = interpreter.get_tensor(index)
        except ValueError:  # a state
            continue
    return found


def _of_weights(values: Array, axis: int | None, dtype: str = "int8") -> Scaled:
    """Return scales of weights: one, or one for each output."""
    if dtype == "uint8":
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        scale = float(np.float32(max(high - low, 1e-3) / 255))
        return Scaled((scale,), int(np.clip(round(-low / scale), 0, 255)))
    others = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
    largest = np.maximum(np.abs(values).max(axis=others), 1e-3)
    scales = np.asarray(largest / 127, np.float32).ravel()
    return Scaled(tuple(map(float, scales)), 0, axis or 0)


def _channels(storing: Storing, operator: Any) -> int:
    return int(storing.graph.tensors[operator.inputs[0]].shape[3])
