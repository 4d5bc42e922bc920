"""A case: plain data that describes a part of a model."""

from __future__ import annotations

import dataclasses
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from litegpu.graph import Blockwise, Quantization
from litegpu.zoo.writer import ModelWriter, TensorRef

Shape = tuple[int, ...]
Pair = tuple[int, int]
Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

EXACT = 0.0
"""Tolerance of what only moves elements."""
CLOSE = 1e-6
"""Tolerance of a few correctly rounded operations."""
SUMS = 1e-5
"""Tolerance of sums in another order, and of exp, sin and the like."""
HALF = 1e-2
"""Tolerance where values are stored as float16."""

SMALL, LARGE = 1, 1 << 16
"""Work items that a device may need to be busy: a few CPU cores, a large GPU."""

UNKNOWN: Shape = (1,)
"""The file's shape of every computed tensor: nobody may rely on it before it is inferred."""


@dataclass(frozen=True)
class Scale:
    """What floats are multiplied by: those of inputs, and constants that stand for weights."""

    values: float = 1.0
    weights: float = 1.0

    @property
    def name(self) -> str:
        """Both factors, in one word."""
        return f"values{self.values:g}-weights{self.weights:g}"


@dataclass(frozen=True)
class Range:
    """Where the elements of an input lie: uniform in [low, high), in steps of `grid` if given."""

    low: float = -2.0
    high: float = 2.0
    grid: float | None = None
    dtype: str = "float32"

    def scaled(self, factor: float) -> Range:
        """Return where floats lie that are multiplied; all others stay."""
        if self.dtype != "float32":
            return self
        grid = None if self.grid is None else self.grid * factor
        return Range(self.low * factor, self.high * factor, grid)

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements."""
        values = np.asarray(random.uniform(self.low, self.high, shape))
        if self.grid is not None:
            values = np.round(values / self.grid) * self.grid
        if self.dtype == "float32":
            return np.asarray(values, np.float32)
        return np.asarray(np.floor(values), self.dtype)


ANY = Range()
STEPS = Range(-4.0, 4.0, grid=1 / 32)
"""Elements that float16 holds."""
FEW = Range(-2.0, 2.0, grid=1.0)
"""Few different elements, so that many are equal."""
TRUTH = Range(0.0, 2.0, dtype="bool")


@dataclass(frozen=True)
class Piece:
    """What a case put into a model: inputs, counts of outputs, nodes and tensors, its weights."""

    inputs: tuple[tuple[Shape, Range], ...]
    outputs: int
    nodes: range
    tensors: range
    weights: tuple[Floats, ...]


@dataclass
class Sheet:
    """A model being written; several cases may share one, side by side.

    The runtime's CPU kernels ignore or refuse some fused activations. On a `reference` sheet those
    are operations of their own; everything else is written the same.
    """

    reference: bool = False
    scale: Scale = Scale()
    writer: ModelWriter = field(default_factory=lambda: ModelWriter("op cases"))
    ops: list[str] = field(default_factory=list)
    tensors: int = 0
    outputs: int = 0
    ranges: list[tuple[Shape, Range]] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    drawn: list[Floats] = field(default_factory=list)

    def add(self, case: Case) -> Piece:
        """Write a case with constants that depend on its name alone."""
        self.random = np.random.default_rng(zlib.crc32(case.name.encode()))
        inputs, outputs = len(self.ranges), self.outputs
        nodes, tensors, drawn = len(self.ops), self.tensors, len(self.drawn)
        case.write(self)
        return Piece(
            tuple(self.ranges[inputs:]),
            self.outputs - outputs,
            range(nodes, len(self.ops)),
            range(tensors, self.tensors),
            tuple(self.drawn[drawn:]),
        )

    def input(
        self, shape: Shape, values: Range = ANY, quantization: Quantization | None = None
    ) -> TensorRef:
        """Add an input of the model."""
        return self._input(shape, values.scaled(self.scale.values), quantization)

    def _input(
        self, shape: Shape, values: Range, quantization: Quantization | None = None
    ) -> TensorRef:
        self.ranges.append((shape, values))
        self.tensors += 1
        return self.writer.input(shape, values.dtype, quantization=quantization)

    def variable(
        self, shape: Shape, dtype: str = "float32", quantization: Quantization | None = None
    ) -> TensorRef:
        """Add a state that starts as zero."""
        self.tensors += 1
        return self.writer.variable(shape, dtype, quantization=quantization)

    def constant(
        self,
        data: npt.ArrayLike,
        dtype: npt.DTypeLike = "float32",
        quantization: Quantization | Blockwise | None = None,
    ) -> TensorRef:
        """Add a constant."""
        self.tensors += 1
        return self.writer.constant(data, dtype, quantization=quantization)

    def weights(self, shape: Shape, values: Range = ANY, *, half: bool = False) -> TensorRef:
        """Add seeded weights; with `half` they are float16 behind DEQUANTIZE, and never scaled."""
        return self._weights(shape, values if half else values.scaled(self.scale.weights), half)

    def _weights(self, shape: Shape, values: Range, half: bool) -> TensorRef:
        data = values.draw(shape, self.random)
        self.drawn.append(data)
        if not half:
            return self.constant(data, values.dtype)
        return self.op("DEQUANTIZE", [self.constant(data, "float16")], version=2)

    def operands(self, shape: Shape, weights: str, bias: str, outputs: int = 0) -> list[TensorRef]:
        """Add weights of `shape` in [-1, 1) and a bias of as many `outputs` (0: as its first).

        Weights are "constant", "half" (float16 constants) or "computed"; so is the bias, or "" for
        none.
        """
        found = []
        # A bias is of the magnitude of what it is added to.
        factors = self.scale.weights, self.scale.weights * self.scale.values
        sizes = shape, (outputs or shape[0],)
        for kind, size, factor in zip((weights, bias), sizes, factors, strict=True):
            half = kind == "half" or weights == "half"
            spread = Range(-1.0, 1.0).scaled(1.0 if half else factor)
            if kind == "computed":
                found.append(self._input(size, spread))
            elif kind:
                found.append(self._weights(size, spread, half))
            elif self.reference:
                # Some of the CPU's kernels refuse to do without, or crash.
                found.append(self.constant(np.zeros(size)))
        return found

    def op(
        self,
        builtin: str,
        inputs: Sequence[TensorRef | None],
        options: Mapping[str, Any] | None = None,
        version: int = 1,
        dtype: str = "float32",
        quantization: Quantization | None = None,
        intermediates: Sequence[Quantization | None] = (),
    ) -> TensorRef:
        """Add an operation with one output, whose shape is left to those who read the file."""
        return self.multi(
            *(builtin, inputs, 1, options, version),
            dtype=dtype,
            quantization=quantization,
            intermediates=intermediates,
        )[0]

    def multi(
        self,
        builtin: str,
        inputs: Sequence[TensorRef | None],
        count: int,
        options: Mapping[str, Any] | None = None,
        version: int = 1,
        shape: Shape = UNKNOWN,
        dtype: str = "float32",
        quantization: Quantization | None = None,
        intermediates: Sequence[Quantization | None] = (),
    ) -> tuple[TensorRef, ...]:
        """Add an operation with several outputs.

        `shape` is what the file says of them, for operations whose CPU kernels insist.
        """
        self.ops.append(builtin)
        self.tensors += count + len(intermediates)
        return self.writer.multi(
            builtin,
            inputs,
            [shape] * count,
            options=options,
            version=version,
            dtypes=[dtype] * count,
            quantizations=[quantization] * count,
            intermediates=intermediates,
        )

    def custom(
        self,
        code: str,
        inputs: Sequence[TensorRef],
        options: bytes = b"",
        count: int = 1,
        version: int = 1,
    ) -> tuple[TensorRef, ...]:
        """Add a custom operation."""
        self.ops.append(code)
        self.tensors += count
        shapes = [UNKNOWN] * count
        return self.writer.custom(code, inputs, shapes, custom_options=options, version=version)

    def fused(
        self,
        builtin: str,
        inputs: Sequence[TensorRef | None],
        activation: str,
        options: Mapping[str, Any] | None = None,
        version: int = 1,
    ) -> TensorRef:
        """Add an operation with a fused activation."""
        apart = self.reference and (activation == "TANH" or builtin == "CONCATENATION")
        inside = "NONE" if apart else activation
        options = {**(options or {}), "fused_activation_function": inside}
        result = self.op(builtin, inputs, options, version)
        return self.op(activation, [result]) if apart and activation != "NONE" else result

    def output(self, *refs: TensorRef) -> None:
        """Make tensors outputs of the model."""
        self.outputs += len(refs)
        self.writer.output(*refs)


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """One line of the table. Its name is made of the fields that differ from their defaults.

    `items` stands for the number of work items that keep the device busy (None: the device's own),
    on which the choice of kernel depends.
    """

    tolerance: ClassVar[float] = SUMS
    """Greatest relative L2 error with float32 storage."""

    items: int | None = None

    @property
    def has_large_weights(self) -> bool:
        """Whether its weights are stored as half at fp16 where its values are not."""
        return False

    def limit(self, half: bool) -> float:
        """Return the greatest relative L2 error with float32 or half storage."""
        return HALF if half and self.tolerance > EXACT else self.tolerance

    @property
    def name(self) -> str:
        """The case in one word: family, then field=value for what is special."""
        parts = [type(self).__name__]
        # What all cases have comes last.
        for each in sorted(dataclasses.fields(self), key=lambda each: each.name == "items"):
            value = getattr(self, each.name)
            if value != each.default:
                parts.append(f"{each.name}={_compact(value)}")
        return "-".join(parts)

    @abstractmethod
    def write(self, sheet: Sheet) -> None:
        """Put inputs, constants, operations and outputs on the sheet."""


@dataclass(frozen=True, kw_only=True)
class Windowed(Case):
    """A case whose operation slides a window over an image."""

    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: str = "SAME"

    def window(self, **others: Any) -> dict[str, Any]:
        """Return the options of a convolution, and others."""
        return {
            "padding": self.padding,
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "dilation_h_factor": self.dilation[0],
            "dilation_w_factor": self.dilation[1],
            **others,
        }


@dataclass(frozen=True, kw_only=True)
class NumpyCase(Case):
    """A case of an operation that the runtime has no CPU kernel for."""

    @abstractmethod
    def expected(
        self, inputs: Sequence[Floats], weights: Sequence[Floats]
    ) -> tuple[npt.NDArray[np.floating[Any]], ...]:
        """Return the outputs, for the inputs and the weights in the order of `write`."""


def _compact(value: Any) -> str:
    if isinstance(value, tuple):
        joint = "+" if any(isinstance(part, tuple | str) for part in value) else "x"
        return joint.join(map(_compact, value)) or "()"
    if isinstance(value, Range):
        kind = "" if value.dtype == "float32" else value.dtype
        return f"{value.low:g}..{value.high:g}{kind}"
    return f"{value:g}" if isinstance(value, float) else str(value)
