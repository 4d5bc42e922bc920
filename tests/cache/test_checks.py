"""What an artifact may say: each fault by itself is refused, with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from litegpu.backends.program import BufferRange, Span
from litegpu.cache.artifact import Artifact
from litegpu.cache.checks import check
from litegpu.engine.partition import compile_partition
from litegpu.graph import DType, Graph
from litegpu.numeric_policy import FP16_ALL
from paper_device import DEVICE, PaperDevice
from passes.graphs import GraphBuilder

Change = Callable[[Artifact], Artifact]


PLAIN = {
    **{"padding": "same", "stride_height": 1, "stride_width": 1},
    **{"dilation_height_factor": 1, "dilation_width_factor": 1},
}


def graph() -> Graph:
    """Return two convolutions as they are read from a file."""
    builder = GraphBuilder()
    x = builder.input(1, 5, 3, 8)
    for channels, depth in ((16, 8), (8, 16)):
        filters = builder.constant(channels, 1, 1, depth)
        x = builder.node("CONV_2D", [x, filters], (1, 5, 3, channels))
    found = builder.graph(x)
    return replace(found, nodes=tuple(replace(node, params=PLAIN) for node in found.nodes))


GRAPH = graph()
GOOD = Artifact.of(compile_partition(GRAPH, PaperDevice(), FP16_ALL), DEVICE, FP16_ALL)
PROGRAM, FACTS = GOOD.program, GOOD.facts
LAUNCH = PROGRAM.launches[0]
KERNEL = next(kernel for kernel in PROGRAM.kernels if kernel.name == LAUNCH.kernel)
WORDS = FACTS.words
ENDS = (GOOD.inputs[0], GOOD.outputs[0])


def program(**fields: Any) -> Artifact:
    return replace(GOOD, program=replace(PROGRAM, **fields))


def kernel(**fields: Any) -> Artifact:
    kernels = [replace(each, **fields) if each is KERNEL else each for each in PROGRAM.kernels]
    return program(kernels=tuple(kernels))


def argument(number: int, **fields: Any) -> Artifact:
    arguments = [*KERNEL.arguments]
    arguments[number] = replace(arguments[number], **fields)
    return kernel(arguments=tuple(arguments))


def launch(**fields: Any) -> Artifact:
    return program(launches=(replace(LAUNCH, **fields), *PROGRAM.launches[1:]))


def facts(**fields: Any) -> Artifact:
    return replace(GOOD, facts=replace(FACTS, **fields))


def words(**fields: Any) -> Artifact:
    assert WORDS is not None
    return facts(words=replace(WORDS, **fields))


def value(v: int, **fields: Any) -> Artifact:
    return facts(values={**FACTS.values, v: replace(FACTS.values[v], **fields)})


FAR = BufferRange(False, PROGRAM.memory_bytes, 4)
BEFORE = BufferRange(False, -4, 4)
CONSTANT = next(part for each in PROGRAM.launches for part in each.ranges if part.constant)
WRITTEN = next(n for n, each in enumerate(KERNEL.arguments) if each.written)
LONG = Span(0, PROGRAM.memory_bytes + 32)


def bound(part: BufferRange, number: int = 0) -> Artifact:
    ranges = [*LAUNCH.ranges]
    ranges[number] = part
    return launch(ranges=tuple(ranges))


FAULTS: dict[str, tuple[Artifact, str]] = {
    "no memory": (program(memory_bytes=0), "it has no memory"),
    "too much": (program(memory_bytes=1 << 40), "it takes more than any"),
    "one name": (program(kernels=(*PROGRAM.kernels, KERNEL)), "two kernels have one name"),
    "other kernel": (launch(kernel="none"), "there is no kernel none"),
    "name": (kernel(name="a b"), "a name is no identifier"),
    "elements": (argument(0, kind="F64"), "takes unknown elements"),
    "buffers": (kernel(arguments=KERNEL.arguments * 99), "needs 396 buffers, the device has 128"),
    "constants": (argument(WRITTEN, constant=True), "writes constants"),
    "items": (
        kernel(local_size=(1 << 20, 1, 1)),
        "needs 1048576 work items in a group",
    ),
    "shared": (kernel(shared=(("double", "s", 4),)), "shares unknown elements"),
    "memory": (
        kernel(shared=(("uint4", "s", 1 << 20),)),
        "needs 16777216 bytes of shared mem",
    ),
    "cluster": (
        kernel(attributes=replace(KERNEL.attributes, cluster_size=0)),
        "cannot be launched",
    ),
    "other groups": (launch(local_size=(1, 1, 1)), "has other work groups than it"),
    "parts": (launch(global_size=(1, 1, 1)), "has no whole work groups"),
    "fewer": (launch(ranges=LAUNCH.ranges[1:]), "binds other buffers than it has"),
    "beyond": (bound(FAR), "binds BufferRange"),
    "before": (bound(BEFORE), "binds BufferRange"),
    "written": (bound(CONSTANT, WRITTEN), "writes constants"),
    "silent": (launch(writes=()), "tells not what it accesses"),
    "long": (launch(writes=(LONG,)), "tells not what it accesses"),
    "more": (launch(writes=LAUNCH.writes * 2), "tells of more than it accesses"),
    "ends": (program(inputs=(FAR, *PROGRAM.inputs[1:])), "is no part of its memory"),
    "no output": (program(sole_writers={9: (0, 0)}), "no such output is written"),
    "no launch": (program(sole_writers={0: (99, 0)}), "no such launch writes an output"),
    "no argument": (program(sole_writers={0: (0, 99)}), "no such argument writes an output"),
    "elsewhere": (program(sole_writers={0: (0, 0)}), "an output is written elsewhere"),
    "no input": (program(readers={9: ()}), "no such input is read"),
    "no reading launch": (program(readers={0: ((99, 0),)}), "no such launch reads an input"),
    "no reading argument": (program(readers={0: ((0, 99),)}), "no such argument reads an input"),
    "read elsewhere": (program(readers={0: ((0, WRITTEN),)}), "an input is read elsewhere"),
    "told": (facts(launches=FACTS.launches[1:]), "not all launches are told of"),
    "work": (
        facts(launches=(replace(FACTS.launches[0], nbytes=-1), *FACTS.launches[1:])),
        "has less than no work",
    ),
    "elements of a value": (value(ENDS[0], shape=(-1, 2)), "a value has less than no elements"),
    "words elsewhere": (words(block=FAR), "range words lie elsewhere"),
    "no words": (words(most=0), "range words are no words"),
    "words over each other": (words(step=4), "range words lie over each other"),
    "words of others": (words(values=((0,),) * 99), "range words are not of all launches"),
    "moved": (program(inputs=PROGRAM.inputs[:-1]), "range words are not moved"),
    "other inputs": (replace(GOOD, inputs=(99,)), "it has other ends"),
    "states": (replace(GOOD, outputs=(*GOOD.outputs, 99)), "it changes what is no input"),
    "unmoved": (
        program(inputs=(PROGRAM.inputs[0], *PROGRAM.inputs)),
        "not all of its ends are moved",
    ),
    "size": (
        program(inputs=(replace(PROGRAM.inputs[0], size=4), *PROGRAM.inputs[1:])),
        f"tensor {ENDS[0]} is another",
    ),
    "shape": (value(ENDS[1], shape=(1, 1)), f"tensor {ENDS[1]} is another"),
    "type": (value(ENDS[1], dtype=DType.INT8), f"tensor {ENDS[1]} is another"),
    "nowhere": (
        facts(values={v: each for v, each in FACTS.values.items() if v != ENDS[1]}),
        f"tensor {ENDS[1]} lies nowhere",
    ),
}
if WORDS is not None:
    unknown = tuple((99,) * len(each) for each in WORDS.values)
    many = tuple((ENDS[0],) * 99 for _ in WORDS.values)
    FAULTS["unknown values"] = (words(values=unknown), "range words are of unknown values")
    FAULTS["too few words"] = (words(values=many), "range words are too few")


def test_what_was_compiled_is_sound() -> None:
    assert WORDS is not None and PROGRAM.sole_writers and PROGRAM.readers
    check(GOOD, GRAPH, DEVICE)
    sections = [np.frombuffer(part, np.uint8) for part in GOOD.sections()]
    again = Artifact.read(np.concatenate(sections))
    check(again, GRAPH, DEVICE)
    assert again.facts == FACTS and again.program.launches == PROGRAM.launches
    assert again.program.readers == PROGRAM.readers


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_refused(name: str) -> None:
    artifact, reason = FAULTS[name]
    with pytest.raises(ValueError, match=re.escape(reason)):
        check(artifact, GRAPH, DEVICE)
