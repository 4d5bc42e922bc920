"""The checks of artifacts reject each invalid value, with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.backends.program import BufferRange, Span, Update
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
LAST = len(PROGRAM.outputs) - 1
LONG = Span(0, PROGRAM.memory_bytes + 32)


def bound(part: BufferRange, number: int = 0) -> Artifact:
    ranges = [*LAUNCH.ranges]
    ranges[number] = part
    return launch(ranges=tuple(ranges))


def blocks(digest: str, nbytes: int = 4) -> Artifact:
    return program(blocks=(ConstantBlock(nbytes, lambda: np.zeros(nbytes, np.uint8), digest),))


def updated(number: int, *uses: tuple[int, int], source: int = len(PROGRAM.inputs) - 1) -> Artifact:
    """Make an output update the last input, or another one; both are range words."""
    return program(updates={number: Update(source, uses)})


FAULTS: dict[str, tuple[Artifact, str]] = {
    "no memory": (program(memory_bytes=0), "the program has no memory"),
    "too much": (program(memory_bytes=1 << 40), "the program needs more memory than the device"),
    "one name": (program(kernels=(*PROGRAM.kernels, KERNEL)), "two kernels have the same name"),
    "other kernel": (launch(kernel="none"), "the program has no kernel none"),
    "name": (kernel(name="a b"), "a name is not an identifier"),
    "elements": (argument(0, kind="F64"), "has unknown element types"),
    "buffers": (
        kernel(arguments=KERNEL.arguments * 99),
        "needs 396 buffers, but the device has 128",
    ),
    "constants": (argument(WRITTEN, constant=True), "writes constants"),
    "items": (
        kernel(local_size=(1 << 20, 1, 1)),
        "needs 1048576 work items in a group",
    ),
    "shared": (kernel(shared=(("double", "s", 4),)), "shares unknown element types"),
    "memory": (
        kernel(shared=(("uint4", "s", 1 << 20),)),
        "needs 16777216 bytes of shared mem",
    ),
    "cluster": (
        kernel(attributes=replace(KERNEL.attributes, cluster_size=0)),
        "cannot be launched",
    ),
    "other groups": (launch(local_size=(1, 1, 1)), "has another work-group size than its kernel"),
    "parts": (launch(global_size=(1, 1, 1)), "does not consist of whole work groups"),
    "fewer": (
        launch(ranges=LAUNCH.ranges[1:]),
        "binds another number of buffers than its kernel has",
    ),
    "beyond": (bound(FAR), "binds BufferRange"),
    "before": (bound(BEFORE), "binds BufferRange"),
    "no block": (bound(replace(CONSTANT, block=9)), "binds BufferRange"),
    "negative block": (bound(replace(CONSTANT, block=-1)), "binds BufferRange"),
    "block of memory": (bound(replace(FAR, offset=0, block=0)), "binds BufferRange"),
    "large block": (blocks("a" * 64, 1 << 40), "the program needs more memory than the device"),
    "digest": (blocks("A" * 64), "the digest of a block of constants is malformed"),
    "written": (bound(CONSTANT, WRITTEN), "writes constants"),
    "silent": (launch(writes=()), "does not declare what it accesses"),
    "long": (launch(writes=(LONG,)), "does not declare what it accesses"),
    "more": (launch(writes=LAUNCH.writes * 2), "declares more accesses than it has arguments"),
    "ends": (program(inputs=(FAR, *PROGRAM.inputs[1:])), "is outside of the program's memory"),
    "no output": (program(sole_writers={9: (0, 0)}), "`sole_writers` names an unknown output"),
    "no launch": (program(sole_writers={0: (99, 0)}), "`sole_writers` names an unknown launch"),
    "no argument": (program(sole_writers={0: (0, 99)}), "`sole_writers` names an unknown argument"),
    "elsewhere": (
        program(sole_writers={0: (0, 0)}),
        "`sole_writers` names an argument that does not write the output",
    ),
    "no input": (program(readers={9: ()}), "`readers` names an unknown input"),
    "no reading launch": (program(readers={0: ((99, 0),)}), "`readers` names an unknown launch"),
    "no reading argument": (
        program(readers={0: ((0, 99),)}),
        "`readers` names an unknown argument",
    ),
    "read elsewhere": (
        program(readers={0: ((0, WRITTEN),)}),
        "`readers` names an argument that does not read the input",
    ),
    "no updated output": (updated(9), "`updates` names an unknown output"),
    "no updated input": (updated(0, source=9), "`updates` names an unknown input"),
    "updated elsewhere": (updated(0), "`updates` names an input in other memory"),
    "no updating launch": (updated(LAST, (99, 0)), "`updates` names an unknown launch"),
    "no updating argument": (updated(LAST, (0, 99)), "`updates` names an unknown argument"),
    "argument elsewhere": (
        updated(LAST, (0, WRITTEN)),
        "`updates` names an argument that is in other memory",
    ),
    "told": (facts(launches=FACTS.launches[1:]), "the facts of some launches are missing"),
    "work": (
        facts(launches=(replace(FACTS.launches[0], nbytes=-1), *FACTS.launches[1:])),
        "has a negative amount of work",
    ),
    "elements of a value": (value(ENDS[0], shape=(-1, 2)), "a value has a negative size"),
    "words elsewhere": (words(block=FAR), "range words are outside of the program's memory"),
    "no words": (words(most=0), "range words are malformed"),
    "words over each other": (words(step=4), "range words overlap"),
    "words of others": (words(values=((0,),) * 99), "range words do not cover all launches"),
    "moved": (
        program(inputs=PROGRAM.inputs[:-1]),
        "range words are not copied to and from the host",
    ),
    "other inputs": (
        replace(GOOD, inputs=(99,)),
        "the program's inputs or outputs differ from the graph's",
    ),
    "states": (
        replace(GOOD, outputs=(*GOOD.outputs, 99)),
        "the program updates a value that is not an input",
    ),
    "unmoved": (
        program(inputs=(PROGRAM.inputs[0], *PROGRAM.inputs)),
        "some inputs or outputs are not copied",
    ),
    "size": (
        program(inputs=(replace(PROGRAM.inputs[0], size=4), *PROGRAM.inputs[1:])),
        f"tensor {ENDS[0]} has another shape or type",
    ),
    "shape": (value(ENDS[1], shape=(1, 1)), f"tensor {ENDS[1]} has another shape or type"),
    "type": (value(ENDS[1], dtype=DType.INT8), f"tensor {ENDS[1]} has another shape or type"),
    "nowhere": (
        facts(values={v: each for v, each in FACTS.values.items() if v != ENDS[1]}),
        f"tensor {ENDS[1]} has no storage",
    ),
}
if WORDS is not None:
    unknown = tuple((99,) * len(each) for each in WORDS.values)
    many = tuple((ENDS[0],) * 99 for _ in WORDS.values)
    FAULTS["unknown values"] = (words(values=unknown), "range words name unknown values")
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
