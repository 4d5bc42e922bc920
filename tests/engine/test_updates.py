"""Results that are stored in the input that they update, and results that need a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.engine.layout import assign
from litegpu.engine.verify import verify
from litegpu.graph import DType, EpilogueOp
from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy
from litegpu.ops.dynamic_update_slice import UpdateAttributes
from paper_device import build
from passes.graphs import RELU, GraphBuilder

SHAPE = (1, 2, 8, 4)
IN_PLACE, COPIED = "update_in_place", "dynamic_update_slice"


class Builder(GraphBuilder):
    def position(self, count: int = 4) -> int:
        """Add an input of integers."""
        self.inputs.append(self.value((count,), dtype=DType.INT32))
        return self.inputs[-1]

    def update(
        self, value: int, part: int, begin: int, epilogue: tuple[EpilogueOp, ...] = ()
    ) -> int:
        inputs, attributes = [value, part, begin], UpdateAttributes(self.shape(part))
        shape = self.shape(value)
        return self.node("DYNAMIC_UPDATE_SLICE", inputs, shape, epilogue, attributes)


Build = Callable[[Builder, int, int, int], tuple[int, ...]]


def templates(make: Build, policy: NumericPolicy = FP32) -> list[str]:
    """Return the kernels of a graph of a cache, a part and a position."""
    builder = Builder()
    operands = builder.input(*SHAPE), builder.input(1, 2, 1, 4), builder.position()
    built = build(assign(builder.graph(*make(builder, *operands)), policy))
    verify(built)
    return [launch.template for launch in built.launches]


def _alone(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    return (builder.update(cache, part, begin),)


def _read(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    """Let others read the result, some of them through a view."""
    after = builder.update(cache, part, begin)
    flat = builder.reshape(after, 1, 1, 16, 4)
    return after, builder.elementwise(after, RELU), builder.conv(flat, 8)


def _chain(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    return (builder.update(builder.update(cache, part, begin), part, begin),)


def _computed(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    """Update what nobody needs afterwards, and read the result."""
    before = builder.elementwise(cache, RELU)
    return (builder.elementwise(builder.update(before, part, begin), RELU),)


@pytest.mark.parametrize(
    ("make", "count", "policy"),
    [
        *((_alone, 1, policy) for policy in (FP32, FP16, FP16_ALL)),
        *((make, 1, FP16_ALL) for make in (_read, _computed)),
        *((_chain, 2, policy) for policy in (FP32, FP16)),
    ],
)
def test_what_nobody_misses_is_updated_in_place(
    make: Build, count: int, policy: NumericPolicy
) -> None:
    found = templates(make, policy)
    assert found.count(IN_PLACE) == count
    assert COPIED not in found


def _reader_after(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    return builder.update(cache, part, begin), builder.elementwise(cache, RELU)


def _view_read_after(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    flat = builder.reshape(cache, 1, 1, 16, 4)
    return builder.update(cache, part, begin), builder.elementwise(flat, RELU)


def _is_output(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    after = builder.update(cache, part, begin)
    return after, builder.update(after, part, begin)


def _epilogue(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    return (builder.update(cache, part, begin, (RELU,)),)


def _own_part(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    return (builder.update(cache, cache, begin),)


def _constant(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    return (builder.update(builder.constant(*SHAPE), part, begin),)


@pytest.mark.parametrize(
    "make", [_reader_after, _view_read_after, _is_output, _epilogue, _own_part, _constant]
)
def test_what_is_needed_again_is_copied(make: Build) -> None:
    assert COPIED in templates(make)


def _reader_before(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    read = builder.elementwise(cache, RELU)
    return builder.update(cache, part, begin), read


def _by_floats(builder: Builder, cache: int, part: int, begin: int) -> tuple[int, ...]:
    """Update at a position that is computed from floats."""
    cast = builder.elementwise(builder.input(4), EpilogueOp("CAST_F32_INT32"))
    builder.values[cast] = replace(builder.values[cast], dtype=DType.INT32)
    return (builder.update(cache, part, cast),)


@pytest.mark.parametrize(("policy", "kernel"), [(FP32, IN_PLACE), (FP16, COPIED)])
@pytest.mark.parametrize("make", [_reader_before, _by_floats])
def test_a_run_that_may_be_repeated_makes_the_same_of_what_it_has_updated(
    make: Build, policy: NumericPolicy, kernel: str
) -> None:
    """With halves, a run whose values overflow is repeated: perhaps in the same buffers."""
    assert kernel in templates(make, policy)


def test_a_program_says_what_accesses_an_output_that_updates_an_input() -> None:
    builder = Builder()
    cache, part, begin = builder.input(*SHAPE), builder.input(1, 2, 1, 4), builder.position()
    other = builder.input(*SHAPE)
    after, read = builder.update(cache, part, begin), builder.update(other, part, begin)
    results = builder.elementwise(after, RELU), after, builder.elementwise(other, RELU), read
    program = build(assign(builder.graph(*results), FP32)).program
    assert list(program.updates) == [1], "the other input is read afterwards"
    update = program.updates[1]
    assert program.inputs[update.input] == program.outputs[1]
    assert len(update.uses) == 2
    for launch, argument in update.uses:
        assert program.launches[launch].ranges[argument] == program.inputs[update.input]
    assert update.input not in program.readers and 1 not in program.sole_writers
