"""Sparse constants: valid and damaged descriptions."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.graph import DType, Graph, Node, Quantization, Value
from litegpu.ops.common.support import check_support
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.runtime_abi.sparse import Level, Sparsity, densify
from litegpu.zoo.writer import ModelWriter
from small_models import assert_close, reference, run
from sparse_tensors import DENSE, SPARSE, sparse_constant

STORED = np.asarray([5, 6, 7], np.float32)


def some(segments: list[int], indices: list[int]) -> Level:
    return Level(0, np.asarray(segments), np.asarray(indices))


ROWS = Sparsity((0, 1), (), (Level(2), some([0, 1, 3], [2, 0, 1])))


def test_rows_of_some_columns() -> None:
    dense = densify(STORED, (2, 3), ROWS)
    assert dense is not None
    assert dense.tolist() == [[0, 0, 5], [6, 7, 0]]


def test_a_number_has_no_levels() -> None:
    dense = densify(STORED[:1], (), Sparsity((), (), ()))
    assert dense is not None
    assert dense.shape == ()
    assert dense == 5


@pytest.mark.parametrize(
    ("shape", "sparsity", "stored"),
    [
        ((2, 3), Sparsity((0, 0), (), ROWS.levels), STORED),
        ((2, 3), Sparsity((0, 1), (), ROWS.levels[:1]), STORED),
        ((2, 3), Sparsity((0, 1, 2), (7,), (*ROWS.levels, Level(1))), STORED),
        ((2, 4), Sparsity((0, 1, 2, 3), (1, 0), (Level(1), Level(2), Level(2), Level(2))), STORED),
        ((2, 3), ROWS, STORED[:2]),
        ((2, 2), ROWS, STORED),
        ((2, 3), Sparsity((0, 1), (), (Level(2), some([0, 1], [2]))), STORED),
        ((2, 3), Sparsity((0, 1), (), (Level(2), some([0, 3, 1], [2, 0, 1]))), STORED),
        ((2, 3), Sparsity((0, 1), (), (Level(2), some([0, 1, 3], [2, 0]))), STORED),
        ((2, 3), Sparsity((0, 1), (), (Level(2), some([0, 1, 3], [2, -1, 1]))), STORED),
        ((2, 3), Sparsity((0, 1), (), (Level(1 << 30), Level(1 << 30))), STORED),
        ((2, 3), Sparsity((0, 1), (), (Level(2), some([0, 1, 1 << 30], [2, 0, 1]))), STORED),
    ],
)
def test_damaged_descriptions(
    shape: tuple[int, ...], sparsity: Sparsity, stored: np.ndarray
) -> None:
    assert densify(stored, shape, sparsity) is None


def test_dense_layers_read_sparse_weights_themselves() -> None:
    writer, random = ModelWriter(), np.random.default_rng(0)
    weights = random.uniform(-1, 1, (6, 16)) * (random.random((6, 16)) < 0.3)
    weights_ref = sparse_constant(writer, weights.astype(np.float32), (0, 1), (DENSE, SPARSE), {})
    x = writer.input((3, 16))
    writer.output(writer.op("FULLY_CONNECTED", [x, weights_ref, None], [(3, 6)], version=8))
    model = writer.build()
    delegate = GpuDelegate(backend="opencl")
    given = random.uniform(-1, 1, (3, 16)).astype(np.float32)
    got = run(interpreter(model, delegate), given)
    assert delegate.report is not None
    assert delegate.report.whole_graph
    assert_close(got, reference(model, given))
    assert_close(got, [given @ weights.astype(np.float32).T])


def test_sparse_weights_of_bytes_stay_on_the_cpu() -> None:
    """It sums their blocks up, and rounds, in another way than dense ones."""
    writer, random = ModelWriter(), np.random.default_rng(0)
    weights = random.integers(-127, 128, (6, 2, 16)) * (random.random((6, 2, 1)) < 0.5)
    stored = weights.reshape(6, 32).astype(np.int8)
    ref = sparse_constant(writer, stored, (0, 1, 2), (DENSE, SPARSE, DENSE), {1: 16})
    writer._tensors[ref.index].quantization = writer._quantization(Quantization((0.02,), (0,)))
    x = writer.input((3, 32))
    writer.output(writer.op("FULLY_CONNECTED", [x, ref], [(3, 6)], version=9))
    delegate = GpuDelegate(backend="opencl")
    interpreter(writer.build(), delegate)
    assert "tensor 0, are sparse; the CPU multiplies them" in str(delegate.report)


def test_a_computed_input_is_refused() -> None:
    values = {v: Value(v, f"v{v}", (2, 3), DType.FLOAT32) for v in (0, 1)}
    found = check_support(Graph(values, (Node(0, "DENSIFY", 1, (0,), (1,)),), (0,), (1,)))
    assert found.reasons == {
        0: "Only constants are expanded; the input is computed, invalid or too large."
    }
