"""Models with variables, as the converter writes those of Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import Quantization
from litegpu.zoo.writer import ModelWriter, TensorRef
from small_models import step


def handle(writer: ModelWriter, name: str) -> TensorRef:
    """Add the handle of a variable."""
    options = {"container": "", "shared_name": name}
    return writer.op("VAR_HANDLE", [], [()], dtype="int32", options=options)


def read(
    writer: ModelWriter, variable: TensorRef, shape: Sequence[int], **stored: Any
) -> TensorRef:
    """Add a node that reads a variable of floats, or as `stored` says: a type, a quantization."""
    return writer.op("READ_VARIABLE", [variable], [tuple(shape)], **stored)


def assign(writer: ModelWriter, variable: TensorRef, value: TensorRef) -> None:
    """Add a node that assigns a variable."""
    writer.multi("ASSIGN_VARIABLE", [variable, value], [])


def first_value(
    writer: ModelWriter,
    values: Mapping[str, npt.NDArray[Any]],
    quantization: Quantization | None = None,
) -> int:
    """Add a node that gives variables their first values, and return its graph's number."""
    first = writer.subgraph()
    for name, value in values.items():
        stored = first.constant(value, name=f"first_{name}", quantization=quantization)
        assign(first, handle(first, name), stored)
    call_once(writer, first.number)
    return first.number


def call_once(writer: ModelWriter, number: int) -> None:
    """Add a node that runs a graph once."""
    writer.multi("CALL_ONCE", [], [], options={"init_subgraph_index": number})


def stream(scale: Quantization) -> bytes:
    """Return a model that keeps the last 3 rows of bytes, and gives their weighted sums."""
    stored: dict[str, Any] = {"dtype": np.int8, "quantization": scale}
    writer = ModelWriter()
    x = writer.input((1, 2, 4), np.int8, quantization=scale)
    first_value(writer, {"rows": np.full((1, 3, 4), scale.zero_point[0], np.int8)}, scale)
    variable = handle(writer, "rows")
    rows = read(writer, variable, (1, 3, 4), **stored)
    rows = writer.op("CONCATENATION", [rows, x], [(1, 5, 4)], options={"axis": 1}, **stored)
    ends = [writer.constant(each, "int32") for each in ([0, 2, 0], [1, 5, 4], [1, 1, 1])]
    last = writer.op("STRIDED_SLICE", [rows, *ends], [(1, 3, 4)], **stored)
    assign(writer, variable, last)
    axes = writer.constant([1, 2], "int32")
    total = writer.op("MEAN", [last, axes], [(1,)], version=2, **stored)
    writer.output(total, last)
    return writer.build()


def accumulator(*, on_cpu: str = "") -> bytes:
    """Return signatures that add to a variable of 4 floats, set it, read it and reset it.

    `on_cpu` is an operation that the last of them has besides.
    """
    writer = ModelWriter()
    x = writer.input((4,), name="x")
    first = first_value(writer, {"sum": np.arange(4, dtype=np.float32)})
    variable = handle(writer, "sum")
    total = writer.op("ADD", [read(writer, variable, (4,)), x], [(4,)])
    assign(writer, variable, total)
    twice = writer.op("MUL", [read(writer, variable, (4,)), total], [(4,)])
    writer.output(twice)
    writer.signature("add", {"x": x}, {"y": twice})

    given = writer.subgraph()
    x = given.input((4,), name="x")
    assign(given, handle(given, "sum"), x)
    y = given.op("NEG", [x], [(4,)])
    given.output(y)
    given.signature("set", {"x": x}, {"y": y})

    reset = writer.subgraph()
    x = reset.input((4,), name="x")
    assign(reset, handle(reset, "sum"), reset.constant(np.full(4, 9, np.float32), name="nines"))
    y = reset.op("ABS", [x], [(4,)])
    reset.output(y)
    reset.signature("reset", {"x": x}, {"y": y})

    subtract = writer.subgraph()
    x = subtract.input((4,), name="x")
    call_once(subtract, first)
    y = subtract.op("SUB", [read(subtract, handle(subtract, "sum"), (4,)), x], [(4,)])
    y = step(subtract, on_cpu, y) if on_cpu else y
    subtract.output(y)
    subtract.signature("get", {"x": x}, {"y": y})
    return writer.build()
