"""What users do with an interpreter, on whichever runtime is installed.

`scripts/check_runtimes.py` runs this, and the other tests of the bridge, in every runtime.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cases
from c_compiler import shared_library
from cases.base import CLOSE, Array, Case, NumpyCase, Sheet
from comparing import mismatch
from every_backend import first_devices
from litegpu import GpuDelegate
from litegpu.pictures import images
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo.writer import ModelWriter
from loop_models import recurrent
from model_runner import cpu_answers
from op_runner import MODES, Mode, run
from real_models import find
from small_models import (
    CPU_ONLY,
    RUNTIME,
    assert_close,
    chain,
    fully_convolutional,
    interpreter,
    random,
    reference,
    step,
)
from small_models import run as run_model

(DIRECT,) = (mode for mode in MODES if mode == Mode("fp32", staged=False))
TOGETHER = 24
WRONG_IN_OLD_RUNTIMES = {
    "Matmul": "batch",
    "IntegerMatmul": ".",
    "HalfFunction": ".",
    "Halves": ".",
    "Resize": "uint16|int32|bool|float16",
    "HybridMatrix": "per_channel|bits=2|block",
    "HybridTransposeConv": ".",
    "Embedding": "per_row|int2|block",
    "MovedSpectrum": "TILE|SLICE|SPACE_TO_BATCH|PAD",
    "ComplexSelection": ".",
    "Gathered": ".",
    "GatheredSingly": ".",
    "Scattered": ".",
    "ScatteredSingly": ".",
    "Spread": ".",
    "Reduced": ".",
    "Shifted": ".",
    "Numbered": ".",
    "Composite": ".",
    "Dilated": ".",
    "Windows": ".",
    "QuantizedConv": "int16",
    "QuantizedMatrix": "int16",
}
"""Families, and patterns of the names of cases that old runtimes get wrong or refuse.

tflite-runtime 2.14 broadcasts transposed matrices wrongly, and beyond its memory. It lacks
composites, operations of StableHLO, DILATE, REDUCE_WINDOW, CONV_2D 8, FULLY_CONNECTED 11 and 12,
TRANSPOSE_CONV of floats with weights of int8, products of int8 in int32, arithmetic and functions
of float16, and the scales of an embedding's rows. Those before 2.1 do not move complex numbers by
TILE, SLICE, STRIDED_SLICE, SPACE_TO_BATCH_ND, pads and selections. ai-edge-litert 1.0 reads weights
of 4 bits as bytes where activations have 16. Those before 2.3 lack weights of 2 bits,
blockwise-quantized ones and functions of float16, and STABLEHLO_GATHER reads beyond its operands
there.
"""


MANY_DIMENSIONS = r"(\d+x){5}\d"
"""Old runtimes end the process at more than 5 dimensions."""
NARROW = "int8|int16"
"""tflite-runtime 2.14 has no uint16, and wraps where later ones end at a type's bounds."""


def rounded_elsewhere() -> frozenset[str]:
    """Return the quantized families that this runtime rounds at other places than those since 2.0.

    By those litegpu goes. Others are a step of stored integers away, or the last bits of floats.
    """
    if "tflite_runtime" in RUNTIME.__name__:
        sums = ("QuantizedMatmul", "QuantizedResidual", "QuantizedSum", "QuantizedTransposeConv")
        return frozenset({*sums, "DequantizeStored", "Quantize", "QuantizedView"})
    if "ai_edge_litert" in RUNTIME.__name__ and version("ai-edge-litert").startswith("1."):
        return frozenset({"QuantizedMatmul"})
    return frozenset()


ROUNDED_ELSEWHERE = rounded_elsewhere()


def some_of_each_family(with_cpu_kernel: bool) -> list[Case]:
    """Return the first and the last case of each family of the op table."""
    found: list[Case] = []
    for family, members in itertools.groupby(cases.TABLE.values(), type):
        if issubclass(family, NumpyCase) == with_cpu_kernel:
            continue
        plain = [case for case in members if case.items is None]
        plain = [case for case in plain if not re.search(f"{MANY_DIMENSIONS}|STABLEHLO", case.name)]
        if "Cast" in family.__name__:
            plain = [case for case in plain if not re.search(NARROW, case.name)]
        if wrong := WRONG_IN_OLD_RUNTIMES.get(family.__name__):
            plain = [case for case in plain if not re.search(wrong, case.name)]
        found += dict.fromkeys(case for case in (*plain[:1], *plain[-1:]))
    return found


def batches(items: list[Case]) -> Iterator[tuple[Case, ...]]:
    """Cut cases into those that share a model."""
    yield from (tuple(items[i : i + TOGETHER]) for i in range(0, len(items), TOGETHER))


GROUPS = [*batches(some_of_each_family(True)), *batches(some_of_each_family(False))]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: type(group[0]).__name__)
def test_operations_of_every_family(group: tuple[Case, ...]) -> None:
    """The attributes of an operation lie where this runtime's structs have them."""
    outcomes = run(group, first_devices()[0], DIRECT)
    wrong = {}
    for case in group:
        outcome = outcomes[case.name]
        if isinstance(outcome, Exception):
            raise AssertionError(case.name) from outcome
        for expected, got in zip(outcome.expected, outcome.got, strict=True):
            if problem := problem_of(case, expected, got):
                wrong[case.name] = problem
    assert wrong == {}


def problem_of(case: Case, expected: Array, got: Array) -> str:
    """Return what is wrong with a result, or an empty text."""
    limit = case.limit(half=False)
    if type(case).__name__ in ROUNDED_ELSEWHERE:
        limit = max(limit, CLOSE)
        same = got.shape == expected.shape and got.dtype == expected.dtype
        if same and np.issubdtype(expected.dtype, np.integer):
            got = np.where(np.abs(got.astype(np.int64) - expected) <= 1, expected, got)
    return mismatch(expected, got, limit)


def test_a_custom_operation_runs_that_the_runtime_cannot_resolve() -> None:
    case = some_of_each_family(False)[0]
    sheet = Sheet()
    sheet.add(case)
    model = sheet.writer.build()
    with pytest.raises((RuntimeError, ValueError), match="custom op"):
        interpreter(model)
    delegate = GpuDelegate()
    interpreter(model, delegate)
    assert delegate.report is not None and delegate.report.whole_graph


SPLIT, WHOLE = ["ABS", "SQRT", CPU_ONLY, "NEG"], ["ABS", "SQRT", "NEG"]
KINDS = {kind: SPLIT for kind in RUNTIME.OpResolverType}
KINDS[RUNTIME.OpResolverType.BUILTIN_REF] = WHOLE  # newer runtimes have few of those kernels


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("threads", [None, 2])
def test_every_set_of_cpu_kernels_beside_the_delegate(kind: Any, threads: int | None) -> None:
    model, x = chain(KINDS[kind]), random(1, 4, 4, 4)
    delegate = GpuDelegate(precision="fp32", max_delegated_partitions=2)
    target = RUNTIME.Interpreter(
        model_content=model,
        num_threads=threads,
        experimental_delegates=[delegate],
        experimental_op_resolver_type=kind,
    )
    target.allocate_tensors()
    assert_close(run_model(target, x), reference(model, x))
    assert delegate.report is not None
    supported = [i for i, op in enumerate(KINDS[kind]) if op != CPU_ONLY]
    assert delegate.report.delegated_nodes == supported


@pytest.mark.filterwarnings("ignore:.*experimental_preserve_all_tensors")
def test_all_tensors_can_be_preserved() -> None:
    writer = ModelWriter()
    x = writer.input((1, 4), name="x")
    positive = step(writer, "ABS", x)
    rounded = step(writer, CPU_ONLY, positive, name="rounded")
    writer.output(step(writer, "NEG", rounded))
    delegate = GpuDelegate(max_delegated_partitions=2)
    target = RUNTIME.Interpreter(
        model_content=writer.build(),
        experimental_delegates=[delegate],
        experimental_preserve_all_tensors=True,
    )
    target.allocate_tensors()
    values = 3 * random(1, 4)
    (result,) = run_model(target, values)
    names = {detail["name"]: detail["index"] for detail in target.get_tensor_details()}
    np.testing.assert_array_equal(target.get_tensor(names["rounded"]), abs(values))
    np.testing.assert_array_equal(result, -abs(values))
    assert delegate.report is not None and delegate.report.delegated_nodes == [0, 2]


def test_a_model_from_a_file(tmp_path: Path) -> None:
    """Its constants lie in the mapped file."""
    model, x = fully_convolutional(float16_weights=True), random(1, 9, 7, 3)
    path = tmp_path / "model.tflite"
    path.write_bytes(model)
    delegate = GpuDelegate()
    target = RUNTIME.Interpreter(model_path=str(path), experimental_delegates=[delegate])
    target.allocate_tensors()
    assert_close(run_model(target, x), reference(model, x))
    assert delegate.report is not None and delegate.report.whole_graph


def two_signatures() -> bytes:
    writer = ModelWriter()
    a, b = writer.input((1, 4), name="a"), writer.input((1, 4), name="b")
    total = writer.op("ADD", [a, b], [(1, 4)])
    rounded = step(writer, CPU_ONLY, total)
    writer.output(total, rounded)
    writer.signature("serving_default", {"left": a, "right": b}, {"sum": total})
    writer.signature("rounded", {"left": a, "right": b}, {"value": rounded})
    return writer.build()


def test_signature_runners_of_a_model_that_is_split() -> None:
    target = interpreter(two_signatures(), GpuDelegate())
    assert sorted(target.get_signature_list()) == ["rounded", "serving_default"]
    sums, rounded = map(target.get_signature_runner, ("serving_default", "rounded"))
    for rows in (1, 3, 1, 2):
        left, right = 3 * random(rows, 4, seed=1), 3 * random(rows, 4, seed=2)
        assert_close([sums(left=left, right=right)["sum"]], [left + right])
        got = rounded(left=left, right=right)["value"]
        np.testing.assert_array_equal(got, left + right)


ANOTHER_DELEGATE = """
#include "abi_structs.h"
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT
#endif

EXPORT int applied, destroyed;
static int prepare(void *context, void *delegate) {
  applied += context && delegate;
  return 0;
}
EXPORT void *tflite_plugin_create_delegate(char **keys, char **values, size_t count, fn report) {
  static TfLiteDelegate delegate;
  delegate.Prepare = (fn)prepare;
  return &delegate;
}
EXPORT void tflite_plugin_destroy_delegate(void *delegate) { destroyed += delegate != NULL; }
"""


def test_a_delegate_of_another_library_beside_it(tmp_path: Path) -> None:
    """What `load_delegate` returns and a GpuDelegate go into the same list, in any order."""
    path = shared_library(ANOTHER_DELEGATE, tmp_path)
    library = ctypes.CDLL(str(path))
    count = ctypes.c_int.in_dll(library, "applied")
    model, x = chain(SPLIT), random(1, 4, 4, 4)
    for number, order in enumerate((1, -1), start=1):
        delegate, other = GpuDelegate(), RUNTIME.load_delegate(str(path))
        target = interpreter(model, *[delegate, other][::order])
        assert_close(run_model(target, x), reference(model, x))
        assert delegate.report is not None and delegate.report.delegated_nodes == [0, 1]
        assert count.value == number
        del target, delegate, other
    gc.collect()
    assert ctypes.c_int.in_dll(library, "destroyed").value == 2


MODELS = ("face_detection_short_range_float16", "mobilenet_v1_0.25_128_float16")


@pytest.mark.real_model
@pytest.mark.parametrize("name", MODELS)
def test_real_model(name: str) -> None:
    model = find(name).read_bytes()
    details = runtime.interpreter(model, builtin_kernels=True).get_input_details()
    pictures = [images.random_tensor(detail) for detail in details]
    (expected,) = cpu_answers(model, [pictures])
    delegate = GpuDelegate(precision="fp32")
    assert_close(run_model(interpreter(model, delegate), *pictures), expected, 1e-5)
    assert delegate.report is not None and delegate.report.whole_graph


@pytest.mark.parametrize("mapped", [False, True])
def test_a_loop_is_read_from_the_runtimes_memory(mapped: bool, tmp_path: Path) -> None:
    """Its body's inputs and outputs are in the model alone, which the delegate is not given."""
    writer = ModelWriter()
    x = writer.input((4, 2, 3))
    writer.output(recurrent(writer, x, 5, gru=False, backward=False, seed=1))
    model, path, values = writer.build(), tmp_path / "model.tflite", random(4, 2, 3)
    path.write_bytes(model)
    delegate = GpuDelegate(min_nodes_per_partition=0)
    source: dict[str, Any] = {"model_path": str(path)} if mapped else {"model_content": model}
    target = RUNTIME.Interpreter(**source, experimental_delegates=[delegate])
    target.allocate_tensors()
    assert_close(run_model(target, values), reference(model, values))
    assert delegate.report is not None and delegate.report.whole_graph
