"""Models with a WHILE, as the converter writes the recurrent layers of Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from litegpu.graph import Quantization
from litegpu.zoo.writer import ModelWriter, TensorRef

Carried = tuple[TensorRef, ...]
Body = Callable[[ModelWriter, Carried], Sequence[TensorRef]]


def loop_graphs(
    writer: ModelWriter, like: Carried, body: Body, passes: int | None, counters: Sequence[int]
) -> tuple[int, int]:
    """Add the graphs of a loop that carries such values, and return their numbers."""
    condition, graph = writer.subgraph(), writer.subgraph()
    carried, inside = (tuple(g.input(v.shape, v.dtype) for v in like) for g in (condition, graph))
    limit = carried[-1] if passes is None else condition.constant(passes, np.int32)
    going, *others = (
        condition.op("LESS", [carried[counter], limit], [()], dtype=bool) for counter in counters
    )
    for other in others:
        going = condition.op("LOGICAL_AND", [going, other], [()], dtype=bool)
    condition.output(going)
    graph.output(*body(graph, inside))
    return condition.number, graph.number


def run_loop(writer: ModelWriter, carried: Carried, graphs: tuple[int, int]) -> Carried:
    """Add a loop whose condition and body are graphs of these numbers."""
    return writer.multi(
        "WHILE",
        carried,
        [ref.shape for ref in carried],
        options=dict(zip(("cond_subgraph_index", "body_subgraph_index"), graphs, strict=True)),
        dtypes=[ref.dtype for ref in carried],
    )


def loop(
    writer: ModelWriter,
    carried: Carried,
    body: Body,
    passes: int | None,
    counters: Sequence[int] = (0,),
) -> Carried:
    """Add a loop that runs while carried values, the `counters`, are below a number of passes.

    Without `passes`, the last carried value says the number of such elements.
    """
    return run_loop(writer, carried, loop_graphs(writer, carried, body, passes, counters))


def counted(writer: ModelWriter, counter: TensorRef) -> TensorRef:
    """Add the next value of a counter."""
    return writer.op("ADD", [counter, writer.constant(1, np.int32)], [()], dtype=np.int32)


def with_row(
    writer: ModelWriter, rows: TensorRef, row: TensorRef, at: TensorRef, after: TensorRef
) -> TensorRef:
    """Add what puts a row into a sequence: what is before it, the row, and what comes after."""
    rest = rows.shape[1:]
    one = writer.constant([1], np.int32)

    def place(number: TensorRef, others: int) -> TensorRef:
        parts = [
            writer.op("RESHAPE", [number, one], [(1,)], dtype=np.int32),
            writer.constant([others] * len(rest), np.int32),
        ]
        return writer.op("CONCATENATION", parts, [(1 + len(rest),)], dtype=np.int32)

    zeros = writer.constant([0] * len(rows.shape), np.int32)
    ends = writer.constant([-1] * len(rows.shape), np.int32)
    before = writer.op("SLICE", [rows, zeros, place(at, -1)], [(-1, *rest)])
    behind = writer.op("SLICE", [rows, place(after, 0), ends], [(-1, *rest)])
    shape = (1, *rest)
    whole = writer.op("RESHAPE", [row, writer.constant(shape, np.int32)], [shape])
    return writer.op("CONCATENATION", [before, whole, behind], [rows.shape])


def recurrent(
    writer: ModelWriter,
    x: TensorRef,
    units: int,
    *,
    gru: bool,
    backward: bool,
    seed: int,
    hybrid: bool = False,
) -> TensorRef:
    """Add an LSTM or GRU over a sequence [steps, batch, features]; returns all its steps.

    The weights of a `hybrid` one are int8.
    """
    random = np.random.default_rng(seed)
    steps, batch, features = x.shape
    if backward:
        x = writer.op("REVERSE_V2", [x, writer.constant([0], np.int32)], [x.shape])
    gates = 3 if gru else 4
    wide = (batch, gates * units)

    def weights(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(np.float32)

    def body(inner: ModelWriter, carried: Carried) -> list[TensorRef]:
        time, step, rows, *states, sequence = carried
        hidden, small = states[0], states[0].shape
        after = counted(inner, step)

        def op(name: str, *inputs: TensorRef) -> TensorRef:
            return inner.op(name, inputs, [small])

        def product(of: TensorRef, size: int) -> TensorRef:
            matrix, bias = weights(gates * units, size), inner.constant(weights(gates * units))
            if not hybrid:
                return inner.op("FULLY_CONNECTED", [of, inner.constant(matrix), bias], [wide])
            stored = np.rint(matrix * 127).astype(np.int8)
            quantized = inner.constant(stored, np.int8, quantization=Quantization((1 / 127,), (0,)))
            return inner.op("FULLY_CONNECTED", [of, quantized, bias], [wide], version=3)

        old = product(hidden, units)
        now = product(inner.op("GATHER", [sequence, step], [(batch, features)]), features)
        axis = inner.constant(1, np.int32)

        def split(of: TensorRef) -> tuple[TensorRef, ...]:
            return inner.multi("SPLIT", [axis, of], [small] * gates, options={"num_splits": gates})

        if gru:
            (z, r, n), (old_z, old_r, old_n) = split(now), split(old)
            update = op("LOGISTIC", op("ADD", z, old_z))
            reset = op("LOGISTIC", op("ADD", r, old_r))
            fresh = op("TANH", op("ADD", n, op("MUL", reset, old_n)))
            rest = op("SUB", inner.constant(np.float32(1)), update)
            new = op("ADD", op("MUL", update, hidden), op("MUL", rest, fresh))
            state = [new]
        else:
            i, f, c, o = split(inner.op("ADD", [now, old], [wide]))
            remembered = op("MUL", op("LOGISTIC", f), states[1])
            cell = op("ADD", remembered, op("MUL", op("LOGISTIC", i), op("TANH", c)))
            new = op("MUL", op("LOGISTIC", o), op("TANH", cell))
            state = [new, cell]
        rows = with_row(inner, rows, new, step, after)
        return [counted(inner, time), after, rows, *state, sequence]

    start = writer.constant(0, np.int32)
    rows = writer.constant(np.zeros((steps, batch, units), np.float32))
    zeros = writer.constant(np.zeros((batch, units), np.float32))
    states = (zeros,) if gru else (zeros, zeros)
    return loop(writer, (start, start, rows, *states, x), body, steps, counters=(0, 1))[2]


def composite(writer: ModelWriter, given: Carried, body: Body, name: str = "odml.test") -> Carried:
    """Add a composite whose graph has the nodes that `body` adds, of float32 results."""
    graph = writer.subgraph()
    results = body(graph, tuple(graph.input(ref.shape, ref.dtype) for ref in given))
    graph.output(*results)
    return writer.multi(
        "STABLEHLO_COMPOSITE",
        given,
        [ref.shape for ref in results],
        options={
            "name": name,
            "decomposition_subgraph_index": graph.number,
            "composite_attributes": np.frombuffer(b"\x00\x00\x01", np.uint8),
        },
    )
