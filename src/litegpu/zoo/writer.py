"""Writes .tflite files from tensors and operations.

The writer checks names, but not shapes. The runtime reports a wrong shape when it loads the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import ModelError
from litegpu.graph.ir import ABSENT, PACKED_TYPES, Blockwise, Quantization
from litegpu.zoo import objects, schema

Shape = Sequence[int]
"""A tensor shape; -1 is a dynamic dimension, whose size is known only when the model runs."""

_PACKED_BITS = {dtype.value: dtype.packed_bits for dtype in PACKED_TYPES}
_SCHEMA_VERSION = 3
_DEQUANTIZE_FLOAT16_VERSION = 2


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of a model in a writer; `dtype` is the schema's name in lower case."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str


class ModelWriter:
    """Builds a .tflite model: a main graph, and the graphs of its IF and WHILE operations.

    Args:
        description: Text stored in the file.
        float16_weights: Make `weights` store float16 with a DEQUANTIZE, as the converter does.
    """

    def __init__(self, description: str = "litegpu", *, float16_weights: bool = False) -> None:
        self._schema = schema.tables()
        self._description = description
        self._float16_weights = float16_weights
        self._refs: list[TensorRef] = []
        self._tensors: list[Any] = []
        self._buffers: dict[bytes, int] = {b"": 0}
        self._codes: dict[tuple[int, str, int], int] = {}
        self._prologue: list[Any] = []
        self._operators: list[Any] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._signatures: list[Any] = []
        self._graphs: list[ModelWriter] = [self]
        self.number = 0
        """The index with which operations of the model refer to this graph."""

    def subgraph(self) -> ModelWriter:
        """Start another graph of the same model; `build` writes all graphs.

        >>> body = writer.subgraph()
        >>> options = {"cond_subgraph_index": condition.number, "body_subgraph_index": body.number}
        """
        graph = ModelWriter(self._description, float16_weights=self._float16_weights)
        graph._buffers, graph._codes, graph._graphs = self._buffers, self._codes, self._graphs
        graph._signatures = self._signatures
        graph.number = len(self._graphs)
        self._graphs.append(graph)
        return graph

    def input(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float32",
        *,
        name: str = "input",
        quantization: Quantization | None = None,
    ) -> TensorRef:
        """Add a model input."""
        ref = self._tensor(shape, dtype, name, quantization)
        self._inputs.append(ref.index)
        return ref

    def constant(
        self,
        data: npt.ArrayLike,
        dtype: npt.DTypeLike | None = None,
        *,
        name: str = "constant",
        quantization: Quantization | Blockwise | None = None,
    ) -> TensorRef:
        """Add a constant, converted to the NumPy type `dtype` if given, or to "int4" or "int2".

        Constants with equal contents share one buffer. The runtime does not recognize a constant
        without elements as a constant, because it has no bytes.
        """
        if isinstance(dtype, str) and dtype in _PACKED_BITS:
            stored = np.asarray(data, np.int8)
            packed = _packed(stored, _PACKED_BITS[dtype])
            buffer = self._buffers.setdefault(packed, len(self._buffers))
            return self._tensor(stored.shape, dtype, name, quantization, buffer=buffer)
        array = np.asarray(data, dtype)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        buffer = self._buffers.setdefault(little, len(self._buffers))
        return self._tensor(array.shape, array.dtype, name, quantization, buffer=buffer)

    def weights(self, data: npt.NDArray[np.float32], *, name: str) -> TensorRef:
        """Add float32 weights; with `float16_weights`, round the weights and store float16."""
        if not self._float16_weights:
            return self.constant(data, name=name)
        half = self.constant(data.astype(np.float16), name=f"{name}_f16")
        full = self._tensor(data.shape, "float32", name)
        self._prologue.append(
            self._operator("DEQUANTIZE", [half], [full], version=_DEQUANTIZE_FLOAT16_VERSION)
        )
        return full

    def variable(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float32",
        *,
        name: str = "variable",
        quantization: Quantization | None = None,
    ) -> TensorRef:
        """Add a tensor that keeps its value between invokes (the state of an LSTM or SVDF)."""
        return self._tensor(shape, dtype, name, quantization, is_variable=True)

    def op(
        self,
        builtin: str,
        inputs: Sequence[TensorRef | None],
        shapes: Sequence[Shape],
        *,
        options: Mapping[str, Any] | None = None,
        version: int = 1,
        dtype: npt.DTypeLike = "float32",
        name: str | None = None,
        quantization: Quantization | None = None,
        intermediates: Sequence[Quantization | None] = (),
    ) -> TensorRef:
        """Add a builtin operation with one output, and return it; see `multi` for the arguments.

        Raises:
            ModelError: `shapes` does not contain exactly one shape.
        """
        if len(shapes) != 1:
            raise ModelError(
                f"{builtin} was given {len(shapes)} output shapes where op() needs one. "
                "Use multi() for any other number of outputs."
            )
        outputs = self.multi(
            builtin,
            inputs,
            shapes,
            options=options,
            version=version,
            dtypes=[dtype],
            names=None if name is None else [name],
            quantizations=[quantization],
            intermediates=intermediates,
        )
        return outputs[0]

    def multi(
        self,
        builtin: str,
        inputs: Sequence[TensorRef | None],
        shapes: Sequence[Shape],
        *,
        options: Mapping[str, Any] | None = None,
        version: int = 1,
        dtypes: Sequence[npt.DTypeLike] | None = None,
        names: Sequence[str] | None = None,
        quantizations: Sequence[Quantization | None] | None = None,
        intermediates: Sequence[Quantization | None] = (),
    ) -> tuple[TensorRef, ...]:
        """Add a builtin operation and return its outputs, one for each of `shapes`.

        Args:
            builtin: Name in the schema's BuiltinOperator, for example "CONV_2D".
            inputs: Input tensors; None for an omitted optional tensor.
            shapes: The shape of each output.
            options: Fields of the operation's options table by snake_case name; members of an
                enumeration may be given by name ("SAME", "RELU6"). Other fields have the schema's
                defaults, some of which (strides: 0) are not usable.
            version: Operation version to record.
            dtypes: Element type of each output; float32 unless given.
            names: Name of each output.
            quantizations: Quantization of each output.
            intermediates: Quantization of each tensor without elements that describes a number
                inside the operation, such as the gates of an LSTM; None for a float.

        Raises:
            OptionsError: Unknown operation, option, enumeration member or type.
            ModelError: A tensor of another writer.
        """
        outputs = self._results(builtin, shapes, dtypes, names, quantizations)
        operator = self._operator(builtin, inputs, outputs, options, version)
        if intermediates:
            operator.intermediates = [self._intermediate(each) for each in intermediates]
        self._operators.append(operator)
        return outputs

    def custom(
        self,
        code: str,
        inputs: Sequence[TensorRef | None],
        shapes: Sequence[Shape],
        *,
        custom_options: bytes = b"",
        version: int = 1,
        dtypes: Sequence[npt.DTypeLike] | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[TensorRef, ...]:
        """Add the custom operation `code` and return its outputs, one for each of `shapes`.

        `custom_options` are the bytes of the operation's options; most operations parse them as a
        flexbuffer.
        """
        outputs = self._results(code, shapes, dtypes, names, None)
        operator = self._operator("CUSTOM", inputs, outputs, None, version, custom_code=code)
        operator.customOptions = np.frombuffer(custom_options, np.uint8)
        self._operators.append(operator)
        return outputs

    def output(self, *refs: TensorRef) -> None:
        """Append tensors to the model's outputs, in this order."""
        self._outputs.extend(self._index(ref) for ref in refs)

    def signature(
        self, key: str, inputs: Mapping[str, TensorRef], outputs: Mapping[str, TensorRef]
    ) -> None:
        """Add the signature `key`, with its names of this graph's inputs and outputs."""
        definition = self._schema.SignatureDefT()
        definition.signatureKey, definition.subgraphIndex = key, self.number
        definition.inputs = self._tensor_maps(inputs)
        definition.outputs = self._tensor_maps(outputs)
        self._signatures.append(definition)

    def build(self) -> bytes:
        """Return the model as the bytes of a .tflite file."""
        model = self._schema.ModelT()
        model.version = _SCHEMA_VERSION
        model.description = self._description
        model.subgraphs = [graph._graph() for graph in self._graphs]
        model.operatorCodes = [self._operator_code(*key) for key in self._codes]
        model.buffers = [objects.buffer_of(content) for content in self._buffers]
        model.signatureDefs = self._signatures or None
        return objects.pack(model)

    def _graph(self) -> Any:
        graph = self._schema.SubGraphT()
        graph.name = f"graph_{self.number}" if self.number else "main"
        graph.tensors = self._tensors
        graph.inputs = self._inputs
        graph.outputs = self._outputs
        graph.operators = self._prologue + self._operators
        return graph

    def _tensor(
        self,
        shape: Shape,
        dtype: npt.DTypeLike,
        name: str,
        quantization: Quantization | Blockwise | None = None,
        *,
        buffer: int = 0,
        is_variable: bool = False,
    ) -> TensorRef:
        dims = tuple(int(dim) for dim in shape)
        ref = TensorRef(len(self._refs), name, dims, schema.tensor_type(dtype))
        tensor = self._schema.TensorT()
        tensor.name = name
        tensor.shape = [max(dim, 1) if dim < 0 else dim for dim in dims]
        tensor.shapeSignature = list(dims) if min(dims, default=0) < 0 else None
        tensor.hasRank = True
        tensor.type = schema.members("TensorType")[ref.dtype.upper()]
        tensor.buffer = buffer
        tensor.isVariable = is_variable
        self._refs.append(ref)
        self._tensors.append(tensor)
        tensor.quantization = quantization and self._quantization(quantization)
        return ref

    def _intermediate(self, quantization: Quantization | None) -> int:
        dtype = "float32" if quantization is None else "int8"
        return self._tensor((0,), dtype, "intermediate", quantization).index

    def _quantization(self, quantization: Quantization | Blockwise) -> Any:
        table = self._schema.QuantizationParametersT()
        if isinstance(quantization, Blockwise):
            blocks = self._schema.BlockwiseQuantizationT()
            blocks.scales = self.constant(quantization.scales, np.float16, name="scales").index
            blocks.zeroPoints = -1
            blocks.blockSize = quantization.size
            table.detailsType = self._schema.QuantizationDetails.BlockwiseQuantization
            table.details = blocks
            return table
        table.scale = np.asarray(quantization.scale, np.float32)
        table.zeroPoint = np.asarray(quantization.zero_point, np.int64)
        table.quantizedDimension = quantization.dimension
        return table

    def _results(
        self,
        op: str,
        shapes: Sequence[Shape],
        dtypes: Sequence[npt.DTypeLike] | None,
        names: Sequence[str] | None,
        quantizations: Sequence[Quantization | None] | None,
    ) -> tuple[TensorRef, ...]:
        count = len(shapes)
        default_names = [f"{op}_{len(self._operators)}:{i}" for i in range(count)]
        columns = (
            shapes,
            ["float32"] * count if dtypes is None else dtypes,
            default_names if names is None else names,
            [None] * count if quantizations is None else quantizations,
        )
        if any(len(column) != count for column in columns):
            given = ", ".join(str(len(column)) for column in columns)
            raise ModelError(
                f"{op} was given shapes, types, names and quantizations for a different number of "
                f"outputs ({given}). Give one of each for every output."
            )
        return tuple(self._tensor(*row) for row in zip(*columns, strict=True))

    def _operator(
        self,
        builtin: str,
        inputs: Iterable[TensorRef | None],
        outputs: Iterable[TensorRef],
        options: Mapping[str, Any] | None = None,
        version: int = 1,
        *,
        custom_code: str = "",
    ) -> Any:
        operator = self._schema.OperatorT()
        key = (schema.member("BuiltinOperator", builtin, "operation"), custom_code, version)
        operator.inputs = [ABSENT if ref is None else self._index(ref) for ref in inputs]
        operator.outputs = [ref.index for ref in outputs]
        union, number, table = schema.builtin_options(builtin, options or {})
        second = union == "BuiltinOptions2"
        setattr(operator, "builtinOptions2" if second else "builtinOptions", table)
        setattr(operator, "builtinOptions2Type" if second else "builtinOptionsType", number)
        operator.opcodeIndex = self._codes.setdefault(key, len(self._codes))
        return operator

    def _operator_code(self, builtin: int, custom_code: str, version: int) -> Any:
        code = self._schema.OperatorCodeT()
        code.builtinCode = builtin
        code.deprecatedBuiltinCode = min(builtin, schema.LAST_SMALL_OPCODE)
        code.customCode = custom_code or None
        code.version = version
        return code

    def _tensor_maps(self, refs: Mapping[str, TensorRef]) -> list[Any]:
        maps = []
        for name, ref in refs.items():
            entry = self._schema.TensorMapT()
            entry.name = name
            entry.tensorIndex = self._index(ref)
            maps.append(entry)
        return maps

    def _index(self, ref: TensorRef) -> int:
        if ref.index >= len(self._refs) or self._refs[ref.index] is not ref:
            raise ModelError(
                f"Tensor '{ref.name}' belongs to another ModelWriter. "
                "Use only tensors of the writer that the operation is added to."
            )
        return ref.index


def _packed(elements: npt.NDArray[np.int8], bits: int) -> bytes:
    """Return packed integers of a few bits; the first integer of a byte is in its low bits."""
    count = 8 // bits
    padded = np.append(elements.ravel(), np.zeros(-elements.size % count, np.int8))
    fields = (padded.view(np.uint8) & ((1 << bits) - 1)).reshape(-1, count)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    found: npt.NDArray[np.uint8] = np.bitwise_or.reduce(fields << shifts, axis=1)
    return found.tobytes()
