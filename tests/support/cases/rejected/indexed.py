"""Rejected operations that select, replace or combine parts of a value by indices."""

from __future__ import annotations

from cases.base import Shape
from cases.rejected.base import Rejected, Tensor, computed, floats, integers
from litegpu.graph import DType, Graph, Node, Quantization


def _places(*shape: int) -> Tensor:
    return Tensor(shape=shape, dtype=DType.INT32)


def _table(scales: int, shape: Shape = (4, 3), dtype: DType = DType.INT8) -> Tensor:
    quantization = Quantization((0.5,) * scales, (0,) * scales)
    return Tensor(shape=shape, dtype=dtype, data=1, quantization=quantization)


def _matrix(*shape: int) -> tuple[Tensor, Tensor]:
    return computed(*shape), computed(shape[-1])


INT8_ROWS = Tensor(shape=(3, 5), dtype=DType.INT8)
_SCATTER = {
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}
_UPDATE = Graph({}, (), (0, 1), (1,))
_SUM = Graph({}, (Node(0, "STABLEHLO_ADD", 1, (0, 1), (2,)),), (0, 1), (2,))
_REVERSED = {"seq_dim": 1, "batch_dim": 0}

CASES = (
    Rejected(
        "GATHER_ND",
        (computed(4, 5), _places(3, 3)),
        "Indices of [3, 3] do not fit [4, 5].",
    ),
    Rejected(
        "GATHER_ND",
        (computed(4, 5), Tensor(shape=(2, 1), dtype=DType.INT32, data=[0, 4])),
        "The indices are between 0 and 4; the value has [4, 5].",
    ),
    Rejected(
        "EMBEDDING_LOOKUP",
        (_places(2, 2), computed(4, 5)),
        "Indices of the shape [2, 2] do not fit a table of [4, 5].",
    ),
    Rejected(
        "EMBEDDING_LOOKUP",
        (_places(2), computed(4, 5)),
        "A table of FLOAT32 cannot produce INT32.",
        result=DType.INT32,
    ),
    Rejected(
        "HASHTABLE_LOOKUP",
        (_places(2), _places(3), computed(4, 5)),
        "Keys of [2] are looked up by those of [3] in [4, 5].",
        outputs=2,
        result=DType.UINT8,
    ),
    Rejected(
        "HASHTABLE_LOOKUP",
        (_places(2), _places(4), computed(4, 5)),
        "A table of FLOAT32 gives UINT8 and UINT8.",
        outputs=2,
        result=DType.UINT8,
    ),
    Rejected(
        "EMBEDDING_LOOKUP_SPARSE",
        (_places(3), _places(3, 2), integers(2, 3), computed(2), computed(4, 5)),
        "Rows of [3] with weights of [2] at indices of [3, 2] do not produce [2, 3] from [4, 5].",
        params={"combiner": 0},
    ),
    Rejected(
        "EMBEDDING_LOOKUP_SPARSE",
        (
            *(_places(70000), _places(70000, 2), integers(2, 70000)),
            *(computed(70000), computed(4, 5)),
        ),
        "The node combines 70000 rows; at most 65536 are supported.",
        params={"combiner": 0},
    ),
    Rejected(
        "BITCAST",
        (INT8_ROWS,),
        "[3, 5] of INT8 cannot be reinterpreted as FLOAT32.",
    ),
    Rejected(
        "EMBEDDING_LOOKUP",
        (_places(2), Tensor(shape=(4, 5), dtype=DType.INT8)),
        "The table of quantized values is computed at run time.",
    ),
    Rejected(
        "EMBEDDING_LOOKUP",
        (_places(2), _table(1, dtype=DType.INT4)),
        "Rows of 4-bit values end within a byte, which the CPU reads in a special way.",
    ),
    Rejected(
        "EMBEDDING_LOOKUP",
        (_places(2), Tensor(shape=(4, 8), dtype=DType.INT8, data=1, block=4)),
        "The INT8 table has a scale for each block, which the CPU rejects.",
    ),
    Rejected("EMBEDDING_LOOKUP", (_places(2), _table(3)), "The table has 3 scales for 4 rows."),
    Rejected(
        "EMBEDDING_LOOKUP",
        (Tensor(shape=(2,), dtype=DType.INT32, data=[0, 4]), _table(1)),
        "Expected 1 or 2 runtime input tensor(s), but node has 0 runtime input(s).",
    ),
    Rejected(
        "DYNAMIC_UPDATE_SLICE",
        (computed(4, 5), computed(5, 5), _places(2)),
        "A part of [5, 5], at [2] numbers, does not fit [4, 5].",
    ),
    Rejected(
        "SCATTER_ND",
        (_places(3, 1), computed(3, 4), integers(6, 5)),
        "Rows of [3, 4] with indices of [3, 1] do not fit a result of [6, 5].",
    ),
    Rejected(
        "SPARSE_TO_DENSE",
        (_places(3, 1), integers(6, 5), computed(3), floats()),
        "Values of [3] at indices of [3, 1] do not fit a result of [6, 5].",
    ),
    Rejected(
        "SPARSE_TO_DENSE",
        (_places(70_000), integers(6), computed(70_000), floats()),
        "The node scatters 70000 values; at most 65536 are supported.",
    ),
    Rejected(
        "STABLEHLO_SCATTER",
        (computed(6, 5), _places(3, 1), computed(4, 5)),
        "The dimension parameters do not fit a value of [6, 5] with indices of [3, 1].",
        params=_SCATTER,
        graphs=(_UPDATE,),
    ),
    Rejected(
        "STABLEHLO_SCATTER",
        (INT8_ROWS, _places(3, 1), INT8_ROWS),
        "STABLEHLO_ADD of INT8 is not supported.",
        params=_SCATTER,
        graphs=(_SUM,),
        result=DType.INT8,
    ),
    Rejected(
        "STABLEHLO_SCATTER",
        (computed(6, 30_000), _places(3, 1), computed(3, 30_000)),
        "The node scatters 90000 elements; at most 65536 are supported.",
        params=_SCATTER,
        graphs=(_UPDATE,),
    ),
    Rejected(
        "SCATTER_ND",
        (_places(70_000, 1), computed(70_000, 4), integers(6, 4)),
        "The node combines 70000 rows; at most 65536 are supported.",
    ),
    Rejected(
        "TOPK_V2",
        (computed(4, 5), integers(6)),
        "The [6] largest elements of [4, 5] are requested.",
        outputs=2,
    ),
    Rejected(
        "TOPK_V2",
        (computed(200_000), integers(6)),
        "Rows have 200000 elements; at most 131072 are supported.",
        outputs=2,
    ),
    Rejected(
        "TOPK_V2",
        (computed(4, 5), integers(3)),
        "The results are FLOAT32 and FLOAT32 for FLOAT32.",
        outputs=2,
    ),
    Rejected(
        "REVERSE_SEQUENCE",
        (computed(4, 5), _places(4)),
        "seq_dim = 2 and batch_dim = 0 are not two of 2 dimensions.",
        params={"seq_dim": 2, "batch_dim": 0},
    ),
    Rejected(
        "REVERSE_SEQUENCE",
        (computed(4, 5), _places(5)),
        "[5] lengths do not fit 4 batches.",
        params=_REVERSED,
    ),
    Rejected(
        "REVERSE_SEQUENCE",
        (computed(4, 5), integers(1, 6, 2, 3)),
        "The lengths are between 1 and 6, but the dimension has 5 elements.",
        params=_REVERSED,
    ),
    Rejected("MATRIX_DIAG", (computed(5000),), "Matrices of 5000 x 1 elements are not supported."),
    Rejected("MATRIX_SET_DIAG", _matrix(4, 5), "A diagonal of [5] does not fit [4, 5]."),
    Rejected(
        "FILL",
        (integers(2, 3), computed(1, 1)),
        "The fill value is a tensor of [1, 1] instead of one number.",
    ),
)
