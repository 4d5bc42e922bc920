"""Cases of WHILE and of composites; recurrent layers are in tests/ops/test_while_loop.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cases.base import TRUTH, Case, Range, Sheet
from litegpu.zoo.writer import ModelWriter, TensorRef
from loop_models import Carried, composite, counted, loop, with_row


@dataclass(frozen=True, kw_only=True)
class Loop(Case):
    """Running sums of the rows of a sequence."""

    steps: int = 3

    def write(self, sheet: Sheet) -> None:
        """One input, one loop, the sequence of sums."""
        x = sheet.input((self.steps, 2, 5))
        start = sheet.constant(0, "int32")
        rows, total = (sheet.constant(np.zeros(shape)) for shape in (x.shape, x.shape[1:]))
        sheet.ops.append("WHILE")
        sheet.tensors += 4
        found = loop(sheet.writer, (start, rows, total, x), _add_row, self.steps)
        sheet.output(found[1])


def _add_row(writer: ModelWriter, carried: Carried) -> list[TensorRef]:
    step, rows, total, x = carried
    after = counted(writer, step)
    row = writer.op("GATHER", [x, step], [total.shape])
    total = writer.op("ADD", [total, row], [total.shape])
    return [after, with_row(writer, rows, total, step, after), total, x]


@dataclass(frozen=True, kw_only=True)
class Composite(Case):
    """The difference of two inputs of one shape, inside another composite or not."""

    depth: int = 1

    def write(self, sheet: Sheet) -> None:
        """Two inputs, one composite."""
        given = sheet.input((2, 3, 5)), sheet.input((2, 3, 5))
        sheet.ops.append("STABLEHLO_COMPOSITE")
        sheet.tensors += 1
        sheet.output(*composite(sheet.writer, given, self.body))

    def body(self, writer: ModelWriter, given: Carried) -> list[TensorRef]:
        """Add the nodes of a composite; the innermost subtracts."""
        if self.depth > 1:
            return [*composite(writer, given[::-1], replace(self, depth=self.depth - 1).body)]
        return [writer.op("SUB", [*given], [given[0].shape])]


@dataclass(frozen=True, kw_only=True)
class Branch(Case):
    """One of several graphs, by a truth value, or by a number that may be none of theirs."""

    count: int = 0
    fixed: int | None = None

    def write(self, sheet: Sheet) -> None:
        """A selection and a value, two outputs."""
        x, dtype = sheet.input((2, 3, 5)), "int32" if self.count else "bool"
        if self.fixed is None:
            values = Range(-1.0, self.count + 1.0, dtype=dtype) if self.count else TRUTH
            selection = sheet.input((), values)
        else:
            selection = sheet.constant(self.fixed, dtype)
        numbers = []
        for op in ("ABS", "NEG", "EXP")[: self.count or 2]:
            graph = sheet.writer.subgraph()
            given = graph.input(x.shape)
            half = graph.op("MUL", [given, graph.constant(0.5, "float32")], [x.shape])
            graph.output(graph.op(op, [given], [x.shape]), half if op == "NEG" else given)
            numbers.append(graph.number)
        names = ("then_subgraph_index", "else_subgraph_index")
        options = (
            dict(zip(names, numbers, strict=True))
            if not self.count
            else {"branch_subgraph_indices": numbers}
        )
        op = "STABLEHLO_CASE" if self.count else "IF"
        sheet.output(*sheet.multi(op, [selection, x], 2, options, shape=x.shape))


@dataclass(frozen=True, kw_only=True)
class Numbered(Branch):
    """A branch by a number: the CPU's kernel takes all graphs of the model for its branches."""


CASES = (
    *(Loop(), Composite(), Composite(depth=2)),
    *(Branch(fixed=fixed) for fixed in (None, 0, 1)),
    Numbered(count=3),
)
