"""Networks as plain data: layers, each a case of the op table that reads results of earlier ones.

A network is built layer by layer. Each layer first runs alone on the CPU, on the numbers that the
layers before it made: so its shapes are known, and what the CPU refuses, or what leaves the range
of useful numbers, is no layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cases.base import Array, Case, Range, Scale, Shape, Sheet
from litegpu.errors import LitegpuError
from litegpu.graph import Quantization
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import objects
from litegpu.zoo.writer import TensorRef

Key = tuple[int, int]
"""A value: the number of the layer that makes it, and which of its results it is."""
Choice = Callable[[Shape, Range], "Key | None"]

_LARGEST = 1e4
_LOUD, _WANTED = 4.0, 1.5
"""Results that spread further than the first are made anew with weights for the second."""
_MAX_RESULTS = 8


class UnfitError(Exception):
    """A layer that does not fit the values that are there."""


@dataclass(frozen=True)
class Layer:
    """A case, which values it reads (None: an input of the model), and a factor of its weights."""

    number: int
    case: Case
    sources: tuple[Key | None, ...] = ()
    weights: float = 1.0

    def __str__(self) -> str:
        read = ", ".join("input" if key is None else _named(key) for key in self.sources)
        factor = "" if self.weights == 1.0 else f" (weights x {self.weights:.3g})"
        return f"{self.number}: {self.case.name}{factor} of {read or 'nothing'}"


@dataclass(frozen=True)
class Network:
    """Layers in the order in which they run; inputs are drawn from the seed."""

    kind: str
    seed: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Value:
    """A result of a layer: its tensor in the network's file, and its elements on the CPU."""

    ref: TensorRef
    elements: Array

    @property
    def shape(self) -> Shape:
        """The shape of the elements."""
        return tuple(self.elements.shape)


@dataclass(frozen=True)
class Written:
    """A network as a file, with elements for its inputs."""

    content: bytes
    inputs: tuple[Array, ...]


@dataclass
class _Flow(Sheet):
    """A sheet whose cases get their inputs from elsewhere, and leave their results here."""

    give: Callable[[_Flow, Shape, Range, Quantization | None], TensorRef] | None = None
    results: list[TensorRef] = field(default_factory=list)

    def _input(
        self, shape: Shape, values: Range, quantization: Quantization | None = None
    ) -> TensorRef:
        assert self.give is not None
        return self.give(self, shape, values, quantization)

    def output(self, *refs: TensorRef) -> None:
        """Note results of the case."""
        self.results += refs


class Builder:
    """Writes a network, layer by layer."""

    def __init__(self, kind: str, seed: int, elements: int) -> None:
        """No value may have more than so many elements."""
        self._kind, self._seed, self._elements = kind, seed, elements
        self._sheet = _Flow(reference=True)
        self._fed: list[Array] = []
        self._read: set[Key] = set()
        self.layers: list[Layer] = []
        self.values: dict[Key, Value] = {}

    @property
    def network(self) -> Network:
        """The network so far."""
        return Network(self._kind, self._seed, tuple(self.layers))

    def add(self, layer: Layer, choose: Choice | None = None, weigh: bool = True) -> list[Key]:
        """Add a layer and return the keys of its results.

        `choose` names the values for inputs that the layer's sources do not name; `weigh` lets the
        layer's factor of the weights follow from its results.

        Raises:
            UnfitError: the layer does not fit.
        """
        layer, elements = self._tried(layer, choose)
        loudest = max((_spread(each) for each in elements), default=0.0)
        if weigh and loudest > _LOUD and layer.weights == 1.0:
            quieter, other = self._tried(replace(layer, weights=_WANTED / loudest), None)
            if max(map(_spread, other), default=0.0) < loudest / 2:
                layer, elements = quieter, other
        _check(elements, self._elements)
        refs = self._write(self._sheet, self._fed, layer, None, self._ref_of)[1]
        keys = [(layer.number, number) for number in range(len(refs))]
        for key, ref, each in zip(keys, refs, elements, strict=True):
            self.values[key] = Value(ref, each)
        self._read.update(key for key in layer.sources if key is not None)
        self.layers.append(layer)
        return keys

    def written(self) -> Written:
        """Return the network's file. Values that no layer reads are its outputs."""
        outputs = [value.ref for key, value in self.values.items() if key not in self._read]
        self._sheet.writer.output(*outputs)
        return Written(shaped(self._sheet.writer.build()), tuple(self._fed))

    def lines(self) -> tuple[str, ...]:
        """Return a line for each layer, with the shapes of its results."""
        shapes: dict[int, list[str]] = {layer.number: [] for layer in self.layers}
        for (number, _), value in self.values.items():
            shapes[number].append("x".join(map(str, value.shape)) or "()")
        return tuple(f"{layer} -> {', '.join(shapes[layer.number])}" for layer in self.layers)

    def _tried(self, layer: Layer, choose: Choice | None) -> tuple[Layer, list[Array]]:
        """Run a layer alone on the CPU; return it with its sources, and its results."""
        probe, fed = _Flow(reference=True), list[Array]()
        known: dict[Key, TensorRef] = {}

        def ref_of(key: Key) -> TensorRef:
            if key not in known:
                elements = self.values[key].elements
                known[key] = probe.writer.input(elements.shape, elements.dtype)
                fed.append(elements)
            return known[key]

        try:
            sources, refs = self._write(probe, fed, layer, choose, ref_of)
            if choose and self.values and not any(sources):
                raise UnfitError("reads nothing")
            probe.writer.output(*refs)
            interpreter = runtime.interpreter(probe.writer.build(), builtin_kernels=True)
            elements = run(interpreter, fed)
        except (LitegpuError, RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
            raise UnfitError(str(error)) from error
        return replace(layer, sources=sources), list(elements)

    def _ref_of(self, key: Key) -> TensorRef:
        return self.values[key].ref

    def _write(
        self,
        sheet: _Flow,
        fed: list[Array],
        layer: Layer,
        choose: Choice | None,
        ref_of: Callable[[Key], TensorRef],
    ) -> tuple[tuple[Key | None, ...], tuple[TensorRef, ...]]:
        sources: list[Key | None] = []

        def give(
            sheet: _Flow, shape: Shape, values: Range, quantization: Quantization | None
        ) -> TensorRef:
            call = len(sources)
            if call < len(layer.sources):
                key = layer.sources[call]
            else:
                key = choose(shape, values) if choose else None
            if key is not None and not self._fits(key, shape, values):
                key = None
            sources.append(key)
            if key is not None:
                return _adapted(sheet, ref_of(key), self.values[key], shape, values)
            random = np.random.default_rng([self._seed, layer.number, call])
            fed.append(values.draw(shape, random))
            return sheet.writer.input(shape, values.dtype, quantization=quantization)

        sheet.give, sheet.results, sheet.scale = give, [], Scale(weights=layer.weights)
        sheet.add(layer.case)
        return tuple(sources), tuple(sheet.results)

    def _fits(self, key: Key, shape: Shape, values: Range) -> bool:
        found = self.values.get(key)
        return (
            found is not None
            and found.elements.size == math.prod(shape)
            and found.elements.dtype == values.dtype
        )


def rebuilt(network: Network, elements: int) -> Builder:
    """Return a network whose layers were removed or changed, with all others fitted to that.

    A value that is not there any more, or has become unfit, is an input of the model instead.

    Raises:
        UnfitError: a layer cannot be built.
    """
    builder = Builder(network.kind, network.seed, elements)
    for layer in network.layers:
        builder.add(_fitted(layer, builder.values), weigh=False)
    return builder


_FIELDS = {"image": 0, "shape": 0, "first": 0, "second": 1}
"""Fields of cases that are the shape of an input."""


def shape_fields(layer: Layer) -> Iterator[tuple[str, int]]:
    """Yield fields that are the shapes of a layer's inputs, with the number of the input."""
    for each in dataclasses.fields(layer.case):
        position = _FIELDS.get(each.name)
        if position is not None and position < max(len(layer.sources), 1):
            yield each.name, position


def _fitted(layer: Layer, values: dict[Key, Value]) -> Layer:
    changes: dict[str, Any] = {}
    for name, position in shape_fields(layer):
        key = layer.sources[position] if position < len(layer.sources) else None
        before = getattr(layer.case, name)
        if key in values and before is not None and len(values[key].shape) == len(before):
            changes[name] = values[key].shape
    return replace(layer, case=replace(layer.case, **changes))


def _adapted(sheet: _Flow, ref: TensorRef, value: Value, shape: Shape, values: Range) -> TensorRef:
    """Return a value in another shape, and without signs where a case wants none."""
    if value.shape != shape:
        operands = [ref, sheet.constant(shape, "int32")]
        ref = sheet.op("RESHAPE", operands, {"new_shape": shape})
    if values.dtype == "float32" and values.low >= 0 and value.elements.min() < values.low:
        ref = sheet.op("ABS", [ref])
        if values.low > 0:
            ref = sheet.op("ADD", [ref, sheet.constant(values.low)], {})
    return ref


def run(interpreter: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Run on the inputs and return the outputs."""
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return tuple(
        np.asarray(interpreter.get_tensor(detail["index"]))
        for detail in interpreter.get_output_details()
    )


def shaped(content: bytes) -> bytes:
    """Return a model whose tensors have the shapes that the runtime gives them."""
    details = runtime.interpreter(content, builtin_kernels=True).get_tensor_details()
    model = objects.parse(content)
    tensors = model.subgraphs[0].tensors
    for detail in details:
        if detail["index"] < len(tensors):
            tensors[detail["index"]].shape = [int(size) for size in detail["shape"]]
    return objects.pack(model)


def _check(elements: Sequence[Array], most: int) -> None:
    if not 0 < len(elements) <= _MAX_RESULTS:
        raise UnfitError(f"{len(elements)} results")
    for each in elements:
        if not 0 < each.size <= most:
            raise UnfitError(f"{each.size} elements")
        if each.dtype.kind == "f" and not np.all(np.abs(each) <= _LARGEST):
            raise UnfitError("numbers that are too large, or none")


def _spread(elements: Array) -> float:
    if elements.dtype.kind != "f" or not elements.size:
        return 0.0
    found = float(np.sqrt(np.mean(np.square(elements, dtype=np.float64))))
    return found if math.isfinite(found) else 0.0


def _named(key: Key) -> str:
    return f"{key[0]}" if key[1] == 0 else f"{key[0]}.{key[1]}"
