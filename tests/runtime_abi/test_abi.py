"""The ctypes structs of the runtime's C interface, compared with a C compiler and known layouts."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from c_compiler import shared_library
from litegpu.errors import DeviceMemoryError
from litegpu.graph import DType
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.enums import DTYPES, TfLiteType
from litegpu.runtime_abi.opcodes import BUILTIN_OPS, CUSTOM, DELEGATE
from litegpu.runtime_abi.params import PARAMS, STRUCTURES, read_params

HEADER = "abi_structs.h"

CORE_LAYOUT: dict[str, tuple[int, tuple[int, ...]]] = {
    "TfLiteQuantizationParams": (8, (0, 4)),
    "TfLiteQuantization": (16, (0, 8)),
    "TfLiteAffineQuantization": (24, (0, 8, 16)),
    "TfLiteBlockwiseQuantization": (16, (0, 4, 8, 12)),
    "TfLiteDimensionMetadata": (24, (0, 4, 8, 16)),
    "TfLiteSparsity": (32, (0, 8, 16, 24)),
    "TfLiteTensor": (112, (0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 76, 77, 80, 96, 104)),
    "TfLiteNode": (80, (0, 8, 16, 24, 32, 40, 48, 56, 64, 72)),
    "TfLiteRegistration": (88, tuple(range(0, 88, 8))),
    "TfLiteContext": (200, tuple(range(0, 200, 8))),
    "TfLiteDelegate": (56, tuple(range(0, 56, 8))),
    "TfLiteDelegateParams": (32, (0, 8, 16, 24)),
}
"""Size and field offsets of each core struct on 64-bit platforms."""

PARAMS_LAYOUT: dict[str, tuple[str, int]] = {
    "ADD": ("TfLiteAddParams", 8),
    "ARG_MAX": ("TfLiteArgParams", 4),
    "ARG_MIN": ("TfLiteArgParams", 4),
    "AVERAGE_POOL_2D": ("TfLitePoolParams", 24),
    "BATCH_MATMUL": ("TfLiteBatchMatMulParams", 3),
    "BIDIRECTIONAL_SEQUENCE_LSTM": ("TfLiteBidirectionalSequenceLSTMParams", 16),
    "BIDIRECTIONAL_SEQUENCE_RNN": ("TfLiteBidirectionalSequenceRNNParams", 12),
    "BUCKETIZE": ("TfLiteBucketizeParams", 16),
    "CALL_ONCE": ("TfLiteCallOnceParams", 4),
    "CAST": ("TfLiteCastParams", 8),
    "CONCATENATION": ("TfLiteConcatenationParams", 8),
    "CONV_2D": ("TfLiteConvParams", 28),
    "CONV_3D": ("TfLiteConv3DParams", 32),
    "CONV_3D_TRANSPOSE": ("TfLiteConv3DParams", 32),
    "CUMSUM": ("TfLiteCumsumParams", 2),
    "DEPTHWISE_CONV_2D": ("TfLiteDepthwiseConvParams", 28),
    "DEPTH_TO_SPACE": ("TfLiteBlockParams", 4),
    "DIV": ("TfLiteActivationParams", 4),
    "EMBEDDING_LOOKUP_SPARSE": ("TfLiteEmbeddingLookupSparseParams", 4),
    "FAKE_QUANT": ("TfLiteFakeQuantParams", 16),
    "FULLY_CONNECTED": ("TfLiteFullyConnectedParams", 16),
    "GATHER": ("TfLiteGatherParams", 8),
    "GELU": ("TfLiteGeluParams", 1),
    "IF": ("TfLiteIfParams", 8),
    "L2_NORMALIZATION": ("TfLiteActivationParams", 4),
    "L2_POOL_2D": ("TfLitePoolParams", 24),
    "LEAKY_RELU": ("TfLiteLeakyReluParams", 4),
    "LOCAL_RESPONSE_NORMALIZATION": ("TfLiteLocalResponseNormParams", 16),
    "LSTM": ("TfLiteLSTMParams", 20),
    "MAX_POOL_2D": ("TfLitePoolParams", 24),
    "MEAN": ("TfLiteReducerParams", 1),
    "MIRROR_PAD": ("TfLiteMirrorPaddingParams", 4),
    "MUL": ("TfLiteActivationParams", 4),
    "ONE_HOT": ("TfLiteOneHotParams", 4),
    "PACK": ("TfLitePackParams", 8),
    "REDUCE_ALL": ("TfLiteReducerParams", 1),
    "REDUCE_ANY": ("TfLiteReducerParams", 1),
    "REDUCE_MAX": ("TfLiteReducerParams", 1),
    "REDUCE_MIN": ("TfLiteReducerParams", 1),
    "REDUCE_PROD": ("TfLiteReducerParams", 1),
    "REDUCE_WINDOW": ("TfLiteReduceWindowParams", 4),
    "RESHAPE": ("TfLiteReshapeParams", 36),
    "RESIZE_BILINEAR": ("TfLiteResizeParams", 2),
    "RESIZE_NEAREST_NEIGHBOR": ("TfLiteResizeParams", 2),
    "REVERSE_SEQUENCE": ("TfLiteReverseSequenceParams", 8),
    "RNN": ("TfLiteRNNParams", 8),
    "SHAPE": ("TfLiteShapeParams", 4),
    "SOFTMAX": ("TfLiteSoftmaxParams", 4),
    "SPACE_TO_DEPTH": ("TfLiteBlockParams", 4),
    "SPLIT": ("TfLiteSplitParams", 4),
    "SPLIT_V": ("TfLiteSplitParams", 4),
    "SQUEEZE": ("TfLiteSqueezeParams", 36),
    "STRIDED_SLICE": ("TfLiteStridedSliceParams", 24),
    "SUB": ("TfLiteAddParams", 8),
    "SUM": ("TfLiteReducerParams", 1),
    "SVDF": ("TfLiteSVDFParams", 12),
    "TRANSPOSE_CONV": ("TfLiteTransposeConvParams", 20),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": ("TfLiteUnidirectionalSequenceLSTMParams", 16),
    "UNIDIRECTIONAL_SEQUENCE_RNN": ("TfLiteSequenceRNNParams", 12),
    "UNPACK": ("TfLiteUnpackParams", 8),
    "STABLEHLO_CASE": ("TfLiteStablehloCaseParams", 84),
    "STABLEHLO_COMPOSITE": ("TfLiteStablehloCompositeParams", 16),
    "STABLEHLO_GATHER": ("TfLiteStablehloGatherParams", 296),
    "STABLEHLO_PAD": ("TfLiteStablehloPadParams", 192),
    "STABLEHLO_REDUCE_WINDOW": ("TfLiteStablehloReduceWindowParams", 392),
    "STABLEHLO_SCATTER": ("TfLiteStablehloScatterParams", 240),
    "VAR_HANDLE": ("TfLiteVarHandleParams", 16),
    "WHILE": ("TfLiteWhileParams", 8),
}
"""C struct of each op, and the bytes of it that are read."""

LEFT_OUT = {
    "TfLitePoolParams": "computed",
    "TfLiteStablehloCompositeParams": "attributes",
}
"""C structs of which only the fields before the named one are mirrored."""

C_CODE = """
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "%(header)s"
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT
#endif

EXPORT int32_t layout[] = {%(layout)s};

EXPORT char reported[8192];
EXPORT void report(void *context, const char *format, ...) {
  size_t used = strlen(reported);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reported + used, sizeof reported - used, format, arguments);
  va_end(arguments);
}

EXPORT TfLiteRegistration taken;
EXPORT int replace(void *context, TfLiteRegistration registration, void *nodes, void *delegate) {
  taken = registration;
  return context == nodes && nodes == delegate;
}
"""


def field_names(mirror: type[ctypes.Structure]) -> list[str]:
    return [field[0] for field in mirror._fields_]


def offsets(mirror: type[ctypes.Structure]) -> list[int]:
    return [getattr(mirror, name).offset for name in field_names(mirror)]


def mirrors() -> list[tuple[str, type[ctypes.Structure]]]:
    core = [(name, getattr(structs, name)) for name in CORE_LAYOUT]
    return core + [(PARAMS_LAYOUT[op][0], STRUCTURES[op]) for op in PARAMS]


def layout() -> list[tuple[str, int]]:
    """Return C expressions for the end of each mirrored part and its offsets, with our numbers."""
    rows = []
    for c_name, mirror in mirrors():
        cut = LEFT_OUT.get(c_name)
        end = f"offsetof({c_name}, {cut})" if cut else f"sizeof({c_name})"
        rows.append((end, ctypes.sizeof(mirror)))
        starts = [f"offsetof({c_name}, {name})" for name in field_names(mirror)]
        rows.extend(zip(starts, offsets(mirror), strict=True))
    return rows


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Build a C library that knows the layouts and plays the runtime's part of two calls."""
    expressions = ",\n".join(text for text, _ in layout())
    source = C_CODE % {"header": HEADER, "layout": expressions}
    return ctypes.CDLL(str(shared_library(source, tmp_path_factory.mktemp("abi"))))


def test_compiler_agrees_with_every_struct(library: ctypes.CDLL) -> None:
    expected = layout()
    numbers = (ctypes.c_int32 * len(expected)).in_dll(library, "layout")
    assert [(text, n) for (text, _), n in zip(expected, numbers, strict=True)] == expected


@pytest.mark.skipif(
    ctypes.sizeof(ctypes.c_void_p) != 8, reason="the listed offsets are those of 64-bit platforms"
)
@pytest.mark.parametrize("name", CORE_LAYOUT)
def test_core_struct_layout(name: str) -> None:
    mirror = getattr(structs, name)
    assert (ctypes.sizeof(mirror), tuple(offsets(mirror))) == CORE_LAYOUT[name]


def test_params_sizes() -> None:
    sizes = {op: ctypes.sizeof(mirror) for op, mirror in STRUCTURES.items()}
    assert sizes == {op: size for op, (_, size) in PARAMS_LAYOUT.items()}


def test_params_ops_exist() -> None:
    assert set(PARAMS) <= set(BUILTIN_OPS.values())


def test_registration_by_value(library: ctypes.CDLL) -> None:
    replace = structs.REPLACE_NODE_SUBSETS(("replace", library))
    node = structs.NODE(lambda context, node: 0)
    sent = structs.TfLiteRegistration(
        invoke=node, builtin_code=DELEGATE, custom_name=b"probe", version=3, inplace_operator=5
    )
    assert replace(0x1000, sent, 0x1000, 0x1000) == 1
    got = structs.TfLiteRegistration.in_dll(library, "taken")
    assert (got.builtin_code, got.custom_name, got.version) == (DELEGATE, b"probe", 3)
    assert got.inplace_operator == 5
    functions: tuple[Any, ...] = (got.init, got.invoke, node)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    assert addresses[0] is None
    assert addresses[1] == addresses[2]


def reporting_context(report: Callable[..., Any]) -> structs.TfLiteContext:
    return structs.TfLiteContext(ReportError=report)


@pytest.mark.parametrize(
    "text", ["", "plain", "100 % of %s, %d and %n", "café " * 700, "×" * 2000], ids=len
)
def test_report_error_reaches_a_variadic_function(library: ctypes.CDLL, text: str) -> None:
    reported = (ctypes.c_char * 8192).in_dll(library, "reported")
    reported.value = b""
    context = reporting_context(structs.REPORT_ERROR(("report", library)))
    structs.report_error(ctypes.addressof(context), text)
    assert reported.value.decode() == text


@pytest.mark.parametrize("start", ["", "a", "ab", "abc"])
def test_report_error_cuts_between_characters(start: str) -> None:
    calls: list[tuple[int, bytes]] = []
    report = structs.REPORT_ERROR(lambda context, text: calls.append((context, text)))
    context = reporting_context(report)
    address = ctypes.addressof(context)
    text = start + "%😀" * 1000
    structs.report_error(address, text)
    printed = [message.replace(b"%%", b"%") for _, message in calls]
    assert {context for context, _ in calls} == {address}
    assert max(map(len, printed)) <= structs.REPORT_LIMIT
    assert "".join(piece.decode() for piece in printed) == text


def test_report_error_replaces_lone_surrogates() -> None:
    calls: list[bytes] = []
    context = reporting_context(structs.REPORT_ERROR(lambda _, text: calls.append(text)))
    structs.report_error(ctypes.addressof(context), "file \udce9.bin")
    assert calls == [b"file ?.bin"]


@pytest.mark.parametrize("values", [(), (7,), (-1, 0, 2**31 - 1, -(2**31))])
def test_int_arrays(values: tuple[int, ...]) -> None:
    output = structs.make_int_array(values)
    assert bytes(output) == struct.pack(f"={len(values) + 1}i", len(values), *values)
    assert structs.int_array(ctypes.addressof(output)) == values
    address = structs.malloc_int_array(values)
    try:
        assert structs.int_array(address) == values
    finally:
        structs.free_array(address)


def test_int_array_view_writes_through() -> None:
    array = structs.make_int_array((1, 2, 3))
    structs.int_array_view(ctypes.addressof(array))[1] = 9
    assert structs.int_array(ctypes.addressof(array)) == (1, 9, 3)


def test_null_arrays() -> None:
    structs.free_array(None)
    assert structs.int_array(None) == structs.int_array(0) == structs.float_array(None) == ()


def test_float_array() -> None:
    memory = ctypes.create_string_buffer(struct.pack("=i3f", 3, 0.5, -1.25, 8.0))
    assert structs.float_array(ctypes.addressof(memory)) == (0.5, -1.25, 8.0)


def test_malloc_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = SimpleNamespace(malloc=lambda size: None)
    monkeypatch.setattr(structs, "_c_library", lambda: empty)
    with pytest.raises(DeviceMemoryError, match=r"could not allocate 12 bytes; close other"):
        structs.malloc_int_array((1, 2))


READ_CASES: list[tuple[str, bytes, dict[str, object]]] = [
    (
        "CONV_2D",
        struct.pack("=6i", 1, 2, 3, 3, 4, 5),
        {
            "padding": "same",
            "stride_width": 2,
            "stride_height": 3,
            "activation": "relu6",
            "dilation_width_factor": 4,
            "dilation_height_factor": 5,
        },
    ),
    (
        "MAX_POOL_2D",
        struct.pack("=6i", 2, 2, 3, 4, 5, 2),
        {
            "padding": "valid",
            "stride_width": 2,
            "stride_height": 3,
            "filter_width": 4,
            "filter_height": 5,
            "activation": "relu_n1_to_1",
        },
    ),
    (
        "FULLY_CONNECTED",
        struct.pack("=2i2?2x", 1, 1, True, False),
        {
            "activation": "relu",
            "weights_format": 1,
            "keep_num_dims": True,
            "asymmetric_quantize_inputs": False,
        },
    ),
    (
        "LSTM",
        struct.pack("=i2fi?3x", 4, 1.5, 0.25, 1, True),
        {
            "activation": "tanh",
            "cell_clip": 1.5,
            "proj_clip": 0.25,
            "kernel_type": 1,
            "asymmetric_quantize_inputs": True,
        },
    ),
    ("MUL", struct.pack("=i", 0), {"activation": "none"}),
    ("DIV", struct.pack("=i", 5), {"activation": "sign_bit"}),
    ("L2_NORMALIZATION", struct.pack("=i", 6), {"activation": "sigmoid"}),
    ("ADD", struct.pack("=i?3x", 99, True), {"activation": 99, "pot_scale_int16": True}),
    ("MIRROR_PAD", struct.pack("=i", 1), {"mode": "reflect"}),
    ("SOFTMAX", struct.pack("=f", 0.5), {"beta": 0.5}),
    ("RESHAPE", struct.pack("=8ii", 4, -1, *(9,) * 6, 2), {"shape": (4, -1)}),
    ("RESHAPE", struct.pack("=8ii", *(9,) * 8, -5), {"shape": ()}),
    ("SQUEEZE", struct.pack("=8ii", 1, 2, 3, *(9,) * 5, 3), {"squeeze_dims": (1, 2, 3)}),
]


@pytest.mark.parametrize(("op", "memory", "expected"), READ_CASES, ids=lambda case: str(case)[:12])
def test_read_params(op: str, memory: bytes, expected: dict[str, object]) -> None:
    buffer = ctypes.create_string_buffer(memory, len(memory))
    found = read_params(op, ctypes.addressof(buffer), 1)
    assert found == expected
    assert [type(value) for value in found.values()] == [type(v) for v in expected.values()]


def test_read_params_without_any() -> None:
    buffer = ctypes.create_string_buffer(4)
    assert read_params("CONV_2D", None, 1) == read_params("CONV_2D", 0, 1) == {}
    assert read_params("TRANSPOSE", ctypes.addressof(buffer), 1) == {}


@pytest.mark.parametrize(
    ("op", "version", "fields"), [("CONV_2D", 8, 6), ("FULLY_CONNECTED", 11, 3)]
)
def test_the_type_of_the_bias_is_read_where_all_runtimes_have_it(
    op: str, version: int, fields: int
) -> None:
    buffer = ctypes.create_string_buffer(struct.pack(f"={fields}ii", *(1,) * fields, 4))
    address = ctypes.addressof(buffer)
    assert "quantized_bias_type" not in read_params(op, address, version - 1)
    assert read_params(op, address, version)["quantized_bias_type"] == 4


def test_element_types() -> None:
    assert set(DTYPES) == set(TfLiteType)
    known = {code.name for code in TfLiteType if DTYPES[code] is not DType.OTHER}
    assert known == set(DType.__members__) - {"OTHER"}
    assert (DTYPES[1], DTYPES[9], DTYPES[10]) == (DType.FLOAT32, DType.INT8, DType.FLOAT16)


def test_op_codes_are_those_of_the_model_schema() -> None:
    module = "ai_edge_litert.schema_py_generated"
    schema = pytest.importorskip(module, reason="the package ai-edge-litert is not installed")
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if name.isupper()}
    # Versions of the package differ in how far their tables reach.
    last = min(max(names), max(BUILTIN_OPS))
    assert {c: n for c, n in names.items() if c <= last} == {
        c: n for c, n in BUILTIN_OPS.items() if c <= last
    }


def test_op_codes_have_no_gap() -> None:
    assert list(BUILTIN_OPS) == list(range(210))
    assert (BUILTIN_OPS[CUSTOM], BUILTIN_OPS[DELEGATE]) == ("CUSTOM", "DELEGATE")
