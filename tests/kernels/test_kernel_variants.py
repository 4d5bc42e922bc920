"""All variants of kernels compile: implementations, tiles, storages and epilogues."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import turns
from litegpu.backends.cuda.compiler import can_compile_fast, compile_source, options_for
from litegpu.codegen import FLOAT, INT, KINDS, KernelText, register_of
from litegpu.codegen.cuda import CUDADialect
from litegpu.engine.choices import Choices
from litegpu.engine.layout import assign
from litegpu.engine.lowering import Lowering
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.kernels import selector
from litegpu.kernels.base import Implementation
from litegpu.kernels.examples import (
    AttentionExample,
    ConvExample,
    DepthwiseExample,
    Example,
    MatmulExample,
    QuantizedConvExample,
)
from litegpu.numeric_policy import FP16, FP16_ALL, FP32
from litegpu.ops.base import COPY, get
from litegpu.ops.common.functions import CASTS, cast_name, of_integers
from litegpu.ops.conv_2d import DepthwiseOperand
from litegpu.ops.exact.functions import lookup_name
from nvrtc import GENERATIONS, needs_nvrtc
from op_runner import forced
from paper_device import nvidia_gpu

pytestmark = needs_nvrtc

# What implementations are queried for


@dataclass(frozen=True)
class Ending:
    """How an epilogue ends: with elements of a type, after what it adds or looks up."""

    dtype: DType
    adds: str = ""
    """What is added first: the elements of another "value", or one for each of the "channels"."""
    table: DType | None = None
    """The type of the elements of a table in which results are looked up, if they are."""


ENDINGS = [
    *(Ending(dtype, adds) for dtype in KINDS for adds in ("", "value")),
    Ending(DType.FLOAT32, "channels"),
    Ending(DType.INT8, "channels"),
    *(Ending(dtype, "value", dtype) for dtype in (DType.INT8, DType.UINT8, DType.FLOAT32)),
]
ALWAYS = {
    *(Ending(dtype) for dtype in (DType.FLOAT32, DType.INT8, DType.INT64)),
    Ending(DType.FLOAT32, "value"),
}
POLICIES = {"fp32": FP32, "fp16": FP16, "half": FP16_ALL}


DEVICES = {
    f"{name}-{units}": nvidia_gpu(GENERATIONS[name], units, local_memory_bytes=shared << 10)
    for name, shared, most in (
        *(("sm_75", 64, 40), ("sm_80", 163, 108)),
        *(("sm_86", 99, 28), ("sm_90", 227, 132)),
    )
    for units in (1, most)
}


def specs() -> list[Example]:
    """Return what is computed: the examples of all implementations, and others far from these."""
    given = (e for ways in selector.IMPLEMENTATIONS.values() for way in ways for e in examples(way))
    convs = (
        ConvExample(image, filters, kernel)
        for image in ((1, 7, 7, 96), (2, 13, 18, 20), (1, 40, 36, 3), (1, 33, 20, 1))
        for filters in (12, 33, 64)
        for kernel in (1, 3, 5)
    )
    quantized = (
        QuantizedConvExample(image, filters, kernel)
        for image in ((1, 7, 7, 96), (2, 13, 18, 20), (1, 40, 36, 3), (1, 33, 20, 1))
        for filters in (12, 33, 64)
        for kernel in (1, 3, 5)
    )
    others = (
        *(ConvExample((1, 14, 14, 24), each, depthwise=True) for each in (12, 33, 64)),
        *(ConvExample((1, 14, 18, 12), each, depthwise=True, expand=72) for each in (12, 33, 64)),
        *(ConvExample((1, 40, 36, 3), each, kernel=3, pool=2) for each in (12, 64)),
        *(DepthwiseExample((1, 9, 11, each)) for each in (12, 33)),
        *(DepthwiseExample((1, 9, 11, each), quantized=True) for each in (12, 33)),
        *(MatmulExample(*sizes) for sizes in ((17, 20, 33), (64, 64, 64))),
        *(MatmulExample(*sizes, quantized=True) for sizes in ((17, 20, 33), (64, 64, 64))),
        *(AttentionExample(*sizes) for sizes in ((17, 33, 20), (64, 64, 64))),
        QuantizedConvExample((1, 9, 8, 40), 20, kernel=2, times=2),
    )
    return [*dict.fromkeys([*given, *convs, *quantized, *others])]


def examples(way: Implementation) -> Iterator[Example]:
    """Yield what an implementation says of itself."""
    yield way.example
    if way.small is not None:
        yield way.small


def ended(graph: Graph, ending: Ending) -> Graph:
    """Return a graph whose last node has an epilogue."""
    last = graph.nodes[-1]
    (output,) = last.outputs
    value, values, inputs = graph.values[output], dict(graph.values), [*graph.inputs]
    register, epilogue = register_of(value.dtype), []

    def add(shape: tuple[int, ...], dtype: DType, data: Any = None) -> int:
        number = max(values) + 1
        values[number] = replace(value, id=number, shape=shape, dtype=dtype, data=data)
        if data is None:
            inputs.append(number)
        return number

    if ending.adds:
        whole = ending.adds == "value"
        dtype = DType.FLOAT32 if register is FLOAT else DType.INT8 if whole else DType.INT32
        shape = value.shape if whole else value.shape[-1:]
        other = add(shape, dtype, None if whole else np.ones(shape, dtype.value))
        epilogue.append(EpilogueOp("ADD" if register is FLOAT else of_integers("ADD"), (other,)))
    if ending.table is not None:
        if register is FLOAT:
            epilogue.append(EpilogueOp(cast_name(FLOAT, DType.INT8)))
            register = INT
        table = add((256,), ending.table, np.zeros(256, ending.table.value))
        epilogue.append(EpilogueOp(lookup_name(ending.table), (table,)))
        register = register_of(ending.table)
    if ending.table is None and ending.dtype is not value.dtype:
        epilogue.append(EpilogueOp(cast_name(register, ending.dtype)))
        assert epilogue[-1].function in CASTS
    values[output] = replace(values[output], dtype=ending.dtype)
    nodes = (*graph.nodes[:-1], replace(last, epilogue=(*last.epilogue, *epilogue)))
    return Graph(values, nodes, tuple(inputs), graph.outputs)


def inside(graph: Graph) -> Graph:
    """Return a graph whose inputs and outputs are copied: between the copies values are padded."""
    values, nodes = dict(graph.values), []

    def copied(value_id: int) -> int:
        number = max(values) + 1
        values[number] = replace(values[value_id], id=number)
        return number

    inputs = {v: copied(v) for v in graph.inputs}
    outputs = {v: copied(v) for v in graph.outputs}
    nodes = [
        *(Node(0, COPY, 1, (source,), (v,)) for v, source in inputs.items()),
        *graph.nodes,
        *(Node(0, COPY, 1, (v,), (result,)) for v, result in outputs.items()),
    ]
    numbered = tuple(replace(node, index=number) for number, node in enumerate(nodes))
    return Graph(values, numbered, tuple(inputs.values()), tuple(outputs.values()))


Way = tuple[type, Implementation]
WAYS: dict[str, Way] = {
    f"{way.name}-{kind.__name__}": (kind, way)
    for kind, ways in selector.IMPLEMENTATIONS.items()
    for way in ways
    if way.backend == "cuda"
}


@dataclass(frozen=True)
class Question:
    """What an implementation is queried for, and where."""

    example: Example
    ending: Ending
    device: str
    policy: str
    is_inside: bool

    def kernels(self, way: Way, tiles: Iterable[int]) -> Iterator[KernelText]:
        """Yield what an implementation answers by its tiles of these numbers."""
        kind, implementation = way
        graph = ended(graph_of(self.example), self.ending)
        if self.is_inside:
            graph = inside(graph)
        op, policy = graph_of(self.example).nodes[-1].op, POLICIES[self.policy]
        layout = assign(graph, policy)
        target = DeviceTarget(DEVICES[self.device], policy, layout.has_halves)
        with mock.patch.dict(selector.IMPLEMENTATIONS, {kind: (implementation,)}):
            selected = Selected(layout, target)
            if any(node.op == op for node in selected.not_accepted()):
                return
            for number in tiles:
                with forced(number) as chosen:
                    launches = Lowering(selected, target, Choices()).lower_all()
                yield from (
                    each.kernel for each in launches if each.template in implementation.templates
                )
                if number not in chosen:
                    return


@functools.cache
def graph_of(example: Example) -> Graph:
    """Return the graph of an example; a depthwise convolution is part of the one that reads it."""
    graph = example.graph()
    first, *others = graph.nodes
    if first.op != "DEPTHWISE_CONV_2D" or not others:
        return graph
    (last,), (between,) = others, first.outputs
    shape = graph.values[between].shape4
    depthwise = DepthwiseOperand(first.attributes, (), shape, between)
    attributes = replace(last.attributes, depthwise=depthwise)
    merged = replace(last, index=0, inputs=first.inputs, attributes=attributes)
    return replace(graph, nodes=(merged,))


def asks_for(example: Example, kind: type) -> bool:
    """Whether the last node of an example has specs of a kind."""
    graph, target = graph_of(example), DeviceTarget(DEVICES["sm_90-132"], FP32)
    last, selected = graph.nodes[-1], Selected(assign(graph, FP32), target)
    return any(isinstance(spec, kind) for spec in get(last.op).specs(last, selected))


def questions(way: Way) -> list[Question]:
    """Return what an implementation is queried for: its specs, each with some ending."""
    kind, _ = way
    requested = (example for example in specs() if asks_for(example, kind))
    places = itertools.product(requested, DEVICES, POLICIES, (False, True))
    return [
        Question(example, ENDINGS[turns.turn(f"{number}", len(ENDINGS))], name, policy, is_inside)
        for number, (example, name, policy, is_inside) in enumerate(places)
    ]


def some_questions(way: Way) -> Iterator[Question]:
    """Yield some of them, each ending or some of the endings once: those that are accepted."""
    own, requested = {*examples(way[1])}, questions(way)
    few = [each for each in requested if each.example in own or not turns.turn(f"{each}", 50)]
    accepted = [each for each in few if any(each.kernels(way, [0]))]
    for ending in ENDINGS:
        if ending not in ALWAYS and turns.turn(f"{way} {ending}", 3):
            continue
        for each in sorted(accepted, key=lambda each: turns.turn(f"{ending} {each}", 1 << 32)):
            question = replace(each, ending=ending)
            if any(question.kernels(way, [0])):
                yield question
                break


def variants(way: Way) -> Iterator[tuple[str, KernelText]]:
    """Yield the kernels that an implementation makes, with the names of generations.

    Those of all questions by all tiles; or, in turns, one of each of some endings.
    """
    for each in questions(way) if turns.ALL else some_questions(way):
        tiles = itertools.count() if turns.ALL else [turns.turn(f"{each}", 6)]
        for kernel in each.kernels(way, tiles):
            yield each.device.partition("-")[0], kernel


def front_end(generation: str) -> tuple[str, ...]:
    """Return the options by which NVRTC finds the errors of a text, and does little else."""
    options = (each.replace("=sm_", "=compute_") for each in options_for(GENERATIONS[generation]))
    return (*options, "--Ofast-compile=max") if can_compile_fast() else (*options,)


@pytest.mark.parametrize("name", WAYS)
def test_what_the_selector_can_choose_compiles(name: str) -> None:
    """Texts that are the same but for their numbers are compiled once."""
    sources: dict[str, dict[str, KernelText]] = {}
    for generation, kernel in variants(WAYS[name]):
        shape = re.sub(r"\d+", "0", f"{kernel.arguments} {kernel.body}")
        sources.setdefault(generation, {}).setdefault(shape, kernel)
    assert sources
    for generation, kernels in sources.items():
        texts = [*kernels.values()]
        for start in range(0, len(texts), 8):
            compile_source(CUDADialect().source(texts[start : start + 8]), front_end(generation))
