"""Values that overflow float16 are detected when stored, and the final results are correct."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from cases.base import HALF, Sheet
from cases.lstm import Lstm
from comparing import mismatch
from cuda_emulator import EmulatedBackend, needs_emulator
from every_backend import first_devices
from litegpu import GpuDelegate, backends
from litegpu.backends.base import DeviceInfo
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.ranges import RangeWatch, RangeWords
from litegpu.errors import DeviceMemoryError
from litegpu.zoo.writer import ModelWriter, Shape, TensorRef
from small_models import (
    ALL_HALF,
    ONE,
    Array,
    interpreter,
    pool,
    random,
    reference,
    run,
    scaled,
    step,
    there_and_back,
    times,
)

MAGNITUDES = (1e5, 1e6, 1e-6, 1e-8)


def delegate(found: DeviceInfo, **options: Any) -> GpuDelegate:
    return GpuDelegate(backend=found.backend, device=found.index, **(options or ALL_HALF))


SMALL_DIVISOR = np.array([1.0, -3.0, 1e-9, 2.0], np.float32)
"""Half makes a zero of the third, which nobody notices beside the others."""


def by_constant(writer: ModelWriter, x: TensorRef, _: TensorRef) -> TensorRef:
    divisor = writer.constant(SMALL_DIVISOR)
    return writer.op("DIV", [x, divisor], [x.shape], options={"fused_activation_function": "NONE"})


def by_computed(writer: ModelWriter, x: TensorRef, y: TensorRef) -> TensorRef:
    y = step(writer, "ABS", pool(writer, y))
    pooled = pool(writer, x)
    options = {"fused_activation_function": "NONE"}
    return writer.op("DIV", [pooled, y], [pooled.shape], options=options)


def of_moved(op: str) -> Any:
    def write(writer: ModelWriter, _: TensorRef, y: TensorRef) -> TensorRef:
        order = writer.constant(np.array([0, 2, 1, 3], np.int32))
        moved = writer.op("TRANSPOSE", [step(writer, "ABS", pool(writer, y)), order], [y.shape])
        return step(writer, op, moved)

    return write


def of_one_between(op: str, shape: Shape, *operands: Any, **options: Any) -> Any:
    """Return the logarithm of what an op makes of each channel, of which its pixels are alike."""

    def write(writer: ModelWriter, _: TensorRef, y: TensorRef) -> TensorRef:
        inputs = [step(writer, "ABS", pool(writer, y)), *map(writer.constant, operands)]
        result = writer.op(op, inputs, [shape], options=options)
        return step(writer, "LOG", result)

    return write


BORDER = np.array([[0, 0], [1, 0], [0, 1], [0, 0]], np.int32)
PIXELS = np.array([1, 2], np.int32)
WINDOW = {"stride_h": 1, "stride_w": 1, "filter_height": 2, "filter_width": 2, "padding": "VALID"}
WRITERS = {
    "constant": by_constant,
    "computed": by_computed,
    "LOG": of_moved("LOG"),
    "RSQRT": of_moved("RSQRT"),
    "PADV2": of_one_between("PADV2", (1, 3, 3, 4), BORDER, np.array([1.0], np.float32)),
    "RESIZE_BILINEAR": of_one_between(
        "RESIZE_BILINEAR", (1, 4, 4, 4), np.array([4, 4], np.int32), half_pixel_centers=True
    ),
    "AVERAGE_POOL_2D": of_one_between("AVERAGE_POOL_2D", (1, 1, 1, 4), **WINDOW),
    "MAX_POOL_2D": of_one_between("MAX_POOL_2D", (1, 1, 1, 4), **WINDOW),
    "MEAN": of_one_between("MEAN", (1, 1, 1, 4), PIXELS, keep_dims=True),
    "REDUCE_MAX": of_one_between("REDUCE_MAX", (1, 1, 1, 4), PIXELS, keep_dims=True),
    "REDUCE_MIN": of_one_between("REDUCE_MIN", (1, 1, 1, 4), PIXELS, keep_dims=True),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_half_makes_zero_is_no_divisor(device: DeviceInfo, write: Any) -> None:
    """A finite answer never becomes infinite."""
    writer = ModelWriter()
    x, y = writer.input((1, 4, 4, 4)), writer.input((1, 4, 4, 4))
    writer.output(write(writer, x, y))
    values = random(1, 4, 4, 4), np.broadcast_to(SMALL_DIVISOR, (1, 4, 4, 4)).copy()
    target = interpreter(writer.build(), delegate(device))
    (expected,), (got,) = reference(writer.build(), *values), run(target, *values)
    assert np.isfinite(expected).all()
    for lane in range(4):
        assert not mismatch(expected[..., lane], got[..., lane], HALF)


def factors(magnitude: float) -> tuple[Array, Array]:
    return np.full(ONE, magnitude, np.float32), np.full(ONE, 1 / magnitude, np.float32)


def check(got: list[Array], expected: list[Array]) -> None:
    for ours, wanted in zip(got, expected, strict=True):
        assert not mismatch(wanted, ours, HALF)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "litegpu"]
    return [line for line in lines if "float16 overflow in" in line]


def remaining(gpu: GpuDelegate) -> tuple[str, ...]:
    assert gpu.report is not None
    return gpu.report.partitions[0].kept_float32


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_the_first_answer_is_right_and_the_tensor_is_named(
    magnitude: float, device: DeviceInfo, caplog: pytest.LogCaptureFixture
) -> None:
    model, gpu = scaled(), delegate(device)
    target, x = interpreter(model, gpu), random(1, 8, 8, 12)
    assert gpu.report is not None
    before = gpu.report.partitions[0]
    for _ in range(2):
        check(run(target, x, *factors(magnitude)), reference(model, x, *factors(magnitude)))
        (line,) = warnings_of(caplog)
        why = "elements beyond 65504" if magnitude > 1 else "no element above 0.001"
        assert f"'scaled': {why}" in line
        assert remaining(gpu) == ("scaled",)
    after = gpu.report.partitions[0]
    assert after.arena_bytes != before.arena_bytes  # those of the program that runs now
    assert "after overflow of float16: 'scaled'" in str(gpu.report)
    assert gpu.report.to_dict()["partitions"][0]["kept_float32"] == ("scaled",)


@pytest.mark.parametrize("magnitude", [1e-6, 1.0])
def test_a_part_of_a_large_bounded_tensor_tells_of_all(
    magnitude: float, device: DeviceInfo, caplog: pytest.LogCaptureFixture
) -> None:
    shape = (1, 192, 192, 8)  # so many elements that only some are noted, by some work groups
    writer = ModelWriter()
    x, up, down = writer.input(shape), writer.input(ONE), writer.input(ONE)
    bounded = step(writer, "RELU6", times(writer, pool(writer, step(writer, "ABS", x)), up, "up"))
    wide = writer.op("CONCATENATION", [bounded] * 4, [(1, 96, 96, 32)], options={"axis": 3})
    capped = step(writer, "RELU6", pool(writer, wide, "pooled"))
    writer.output(times(writer, capped, down, "back"))
    model, gpu = writer.build(), delegate(device)
    values = random(*shape)
    check(
        run(interpreter(model, gpu), values, *factors(magnitude)),
        reference(model, values, *factors(magnitude)),
    )
    assert bool(warnings_of(caplog)) == (magnitude < 1)


def test_what_fits_is_never_compiled_again(
    device: DeviceInfo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[PartitionKernel] = []
    compile_, model, gpu = PartitionKernel._compile, scaled(), delegate(device)

    def noted(self: PartitionKernel, *arguments: Any) -> CompiledPartition:
        compiled.append(self)
        return compile_(self, *arguments)

    monkeypatch.setattr(PartitionKernel, "_compile", noted)
    target = interpreter(model, gpu)
    for seed, magnitude in enumerate((1.0, 100.0, 0.01)):
        x = random(1, 8, 8, 12, seed=seed)
        check(run(target, x, *factors(magnitude)), reference(model, x, *factors(magnitude)))
    nothing = np.zeros(ONE, np.float32)
    run(target, np.zeros((1, 8, 8, 12), np.float32), nothing, nothing)
    assert len(compiled) == 1
    assert not remaining(gpu) and not warnings_of(caplog)


def test_infinity_that_was_there_before_rounding_is_none_of_it(
    device: DeviceInfo, caplog: pytest.LogCaptureFixture
) -> None:
    model, gpu = scaled(), delegate(device)
    infinite = np.full(ONE, np.inf, np.float32)
    run(interpreter(model, gpu), random(1, 8, 8, 12), infinite, infinite)
    assert not remaining(gpu) and not warnings_of(caplog)


def test_states_advance_once(device: DeviceInfo) -> None:
    """The run that lost something is undone: the next one starts from the states before it."""
    sheet = Sheet()
    sheet.add(Lstm())
    writer = sheet.writer
    x, up, down = writer.input((1, 8, 8, 12)), writer.input(ONE), writer.input(ONE)
    writer.output(there_and_back(writer, x, up, down))
    gpu, model = delegate(device), writer.build()
    here, cpu = interpreter(model, gpu), interpreter(model)
    for seed, magnitude in enumerate((1.0, 1e6, 1e-8)):
        values = [random(2, 4, 5, seed=seed), random(1, 8, 8, 12, seed=seed), *factors(magnitude)]
        check(run(here, *values), run(cpu, *values))
        assert remaining(gpu) == (("scaled",) if seed else ())


def test_it_stays_so_in_other_shapes(device: DeviceInfo, caplog: pytest.LogCaptureFixture) -> None:
    model, gpu = scaled(), delegate(device)
    target = interpreter(model, gpu)
    for shape in ((1, 8, 8, 12), (3, 5, 6, 12)):
        target.resize_tensor_input(target.get_input_details()[0]["index"], shape)
        target.allocate_tensors()
        values = (random(*shape), *factors(1e6))
        check(run(target, *values), reference(model, *values))
        assert remaining(gpu) == ("scaled",)
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("magnitude", (1e6, 1e-8))
@pytest.mark.parametrize("channels", (8, 3))
def test_parts_of_a_whole_and_views_of_it(
    channels: int, magnitude: float, device: DeviceInfo
) -> None:
    """Producers write straight into CONCATENATION, and RESHAPE and slices only look at it."""
    writer = ModelWriter()
    x, up, down = writer.input((2, 8, 8, channels)), writer.input(ONE), writer.input(ONE)
    parts = [times(writer, pool(writer, x), up, "scaled"), step(writer, "ABS", pool(writer, x))]
    whole = writer.op("CONCATENATION", parts, [(2, 4, 4, 2 * channels)], options={"axis": 3})
    flat = writer.op(
        "RESHAPE",
        [whole, writer.constant(np.array([1, 8, 4, 2 * channels], "int32"))],
        [(1, 8, 4, 2 * channels)],
    )
    zeros, size = (np.array(each, "int32") for each in ((0, 0, 0, 0), (1, 8, 4, channels)))
    cut = writer.op("SLICE", [flat, writer.constant(zeros), writer.constant(size)], [tuple(size)])
    writer.output(times(writer, pool(writer, cut), down, "back"))
    writer.output(pool(writer, whole))
    gpu, model = delegate(device), writer.build()
    values = (random(2, 8, 8, channels), *factors(magnitude))
    target = interpreter(model, gpu)
    for _ in range(2):
        check(run(target, *values), reference(model, *values))
    assert remaining(gpu)


def test_what_a_cut_value_hid_is_found_in_one_more_round(
    device: DeviceInfo, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of six values is beyond the range, but only the first can be seen from the start."""
    writer = ModelWriter()
    x, up, down = writer.input((1, 8, 8, 12)), writer.input(ONE), writer.input(ONE)
    for number in range(6):
        x = times(writer, pool(writer, x), up, f"value {number}")
        x = step(writer, "ABS", x)
        x = times(writer, pool(writer, x), down, f"back {number}") if number % 2 else x
    writer.output(x)
    gpu, model = delegate(device), writer.build()
    values = (np.abs(random(1, 8, 8, 12)), *factors(1e3))
    check(run(interpreter(model, gpu), *values), reference(model, *values))
    assert len(warnings_of(caplog)) == 2


def test_large_tensors_of_the_default_options() -> None:
    """From 8 MiB on, values are stored as half without being asked for."""
    device = first_devices()[0]
    writer, shape = ModelWriter(), (1, 1024, 512, 16)
    x, up, down = writer.input(shape), writer.input(ONE), writer.input(ONE)
    writer.output(there_and_back(writer, x, up, down))
    model = writer.build()
    for precision, names in (("fp16", ("scaled",)), ("fp32", ())):
        gpu = delegate(device, precision=precision)
        values = (random(*shape), *factors(1e6))
        check(run(interpreter(model, gpu), *values), reference(model, *values))
        assert remaining(gpu) == names


def test_without_memory_for_float32_the_invoke_fails_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, gpu = scaled(), delegate(first_devices()[0])
    target, values = interpreter(model, gpu), (random(1, 8, 8, 12), *factors(1e6))

    def short(*_: Any) -> CompiledPartition:
        raise DeviceMemoryError("no memory is left")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionKernel, "_compile", short)
        with pytest.raises(RuntimeError, match="no memory is left"):
            run(target, *values)
    check(run(target, *values), reference(model, *values))


@needs_emulator
@pytest.mark.parametrize("magnitude", (1e6, 1e-8))
def test_kernels_for_cuda_tell_it_too(magnitude: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    model, gpu = scaled(), GpuDelegate(backend="cuda", **ALL_HALF)
    values = (random(1, 8, 8, 12), *factors(magnitude))
    check(run(interpreter(model, gpu), *values), reference(model, *values))
    assert remaining(gpu) == ("scaled",)


def test_each_result_of_a_kernel_counts_by_itself() -> None:
    """As of the largest element and its place, of which one is never tiny."""
    layout = RangeWords.place(((5,), (7, 9)), 100, 16)
    assert (layout.block.offset, layout.step) == (112, 32)
    watch = RangeWatch(layout)
    words = (ctypes.c_uint32 * 16).from_address(watch.target)
    assert watch.lost() == {}
    words[1] = 1  # nothing but tiny elements in value 5
    assert list(watch.lost()) == [5]
    words[2] = 1  # but larger ones as well
    assert watch.lost() == {}
    words[8 + 1] = words[8 + 5] = 1  # tiny ones in value 7, others in value 9
    assert list(watch.lost()) == [7]
    words[8 + 3] = 1
    assert list(watch.lost()) == [7, 9]
    words[8 + 2] = 1
    assert list(watch.lost()) == [9]
