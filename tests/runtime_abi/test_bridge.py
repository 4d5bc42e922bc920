"""The delegate inside the interpreter: all uses of interpreters still work."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.options import Precision
from litegpu.zoo.writer import ModelWriter
from small_models import (
    CPU_ONLY,
    RUNTIME,
    WHY_ON_CPU,
    Array,
    assert_close,
    chain,
    fully_convolutional,
    in_threads,
    interpreter,
    random,
    reference,
    run,
    step,
)

PRECISIONS: dict[Precision, float] = {"fp32": 1e-5, "fp16": 5e-3}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("builtin", [True, False], ids=["builtin", "xnnpack"])
def test_a_split_model_gives_the_cpus_answers(precision: Precision, builtin: bool) -> None:
    model = chain(["ABS", "SQRT", CPU_ONLY, "NEG"])
    delegate = GpuDelegate(precision=precision)
    got = run(interpreter(model, delegate, builtin=builtin), random(1, 4, 4, 4))
    assert_close(got, reference(model, random(1, 4, 4, 4)), PRECISIONS[precision])
    assert delegate.report is not None
    assert delegate.report.delegated_nodes == [0, 1]


def test_one_delegate_serves_two_interpreters() -> None:
    first, second = chain(["ABS", "NEG"]), fully_convolutional()
    delegate = GpuDelegate()
    one, two = interpreter(first, delegate), interpreter(second, delegate)
    x, picture = random(1, 4, 4, 4), random(1, 9, 7, 3)
    for _ in range(3):
        assert_close(run(one, x), reference(first, x))
        assert_close(run(two, picture), reference(second, picture))
    assert delegate.report is not None
    assert delegate.report.total_nodes == 4  # the model that was delegated last


def test_two_delegates_in_one_process() -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    targets = [interpreter(model, GpuDelegate(precision=p)) for p in PRECISIONS]
    for target, tolerance in zip(targets, PRECISIONS.values(), strict=True):
        assert_close(run(target, x), reference(model, x), tolerance)


def test_two_delegates_on_one_interpreter() -> None:
    model, x = chain(["ABS", "SQRT", CPU_ONLY, "NEG", CPU_ONLY, "EXP"]), random(1, 4, 4, 4)
    first = GpuDelegate(precision="fp32")
    second = GpuDelegate(precision="fp16", max_delegated_partitions=9)
    target = interpreter(model, first, second)
    assert_close(run(target, x), reference(model, x), PRECISIONS["fp16"])
    assert first.report is not None and second.report is not None
    assert first.report.delegated_nodes == [0, 1]
    # The runtime numbers the node that replaced those two after the model's own nodes.
    assert second.report.delegated_nodes == [3, 5]
    assert second.report.rejected[0].op == "DELEGATE"
    target.resize_tensor_input(0, [2, 4, 4, 4])
    target.allocate_tensors()
    assert_close(run(target, random(2, 4, 4, 4)), reference(model, random(2, 4, 4, 4)), 5e-3)


def test_threads_with_interpreters_of_their_own() -> None:
    model = fully_convolutional()
    pictures = [random(1, 9, 7, 3, seed=i) for i in range(4)]
    expected = [reference(model, picture) for picture in pictures]
    shared = GpuDelegate()

    def work(number: int) -> None:
        delegate = shared if number % 2 else GpuDelegate()
        for _ in range(3):
            target = interpreter(model, delegate)
            for _ in range(20):
                assert_close(run(target, pictures[number]), expected[number])

    in_threads(work)


def test_an_interpreter_invoked_from_another_thread_than_it_was_made_in() -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    target = interpreter(model, GpuDelegate())
    found: list[list[Array]] = []
    thread = threading.Thread(target=lambda: found.append(run(target, x)))
    thread.start()
    thread.join(timeout=60)
    assert_close(found[0], reference(model, x))


SHAPES = [(3, 9, 7, 3), (1, 9, 7, 3), (1, 16, 5, 3), (2, 1, 1, 3), (1, 33, 20, 3), (1, 9, 7, 3)]


@pytest.mark.parametrize("float16_weights", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_resizing_again_and_again(precision: Precision, float16_weights: bool) -> None:
    model = fully_convolutional(float16_weights=float16_weights)
    delegate = GpuDelegate(precision=precision)
    target = interpreter(model, delegate)
    for _ in range(2):
        for shape in SHAPES:
            target.resize_tensor_input(0, shape)
            target.allocate_tensors()
            x = random(*shape)
            expected = reference(model, x)
            assert tuple(target.get_output_details()[0]["shape"]) == expected[0].shape
            assert_close(run(target, x), expected, PRECISIONS[precision])
            assert delegate.report is not None and delegate.report.whole_graph


def test_resizing_a_split_model() -> None:
    model = chain([CPU_ONLY, "ABS", "SQRT", CPU_ONLY, "NEG"])
    target = interpreter(model, GpuDelegate(max_delegated_partitions=2))
    for batch in (3, 1, 3):
        target.resize_tensor_input(0, [batch, 5, 4, 3])
        target.allocate_tensors()
        x = random(batch, 5, 4, 3)
        assert_close(run(target, x), reference(model, x))


def test_unknown_dimensions_in_the_file() -> None:
    model = fully_convolutional((-1, -1, -1, 3))
    target = interpreter(model, GpuDelegate())
    for shape in SHAPES:
        target.resize_tensor_input(0, shape, strict=True)
        target.allocate_tensors()
        assert_close(run(target, random(*shape)), reference(model, random(*shape)))


def test_resizing_before_the_first_allocation() -> None:
    model, x = fully_convolutional(), random(2, 8, 8, 3)
    target = RUNTIME.Interpreter(model_content=model, experimental_delegates=[GpuDelegate()])
    target.resize_tensor_input(0, x.shape)
    target.allocate_tensors()
    assert_close(run(target, x), reference(model, x))


def test_allocating_twice() -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    target = interpreter(model, GpuDelegate())
    first = run(target, x)
    target.allocate_tensors()
    assert_close(run(target, x), reference(model, x))
    np.testing.assert_array_equal(run(target, x)[0], first[0])


def test_thousands_of_invokes_follow_their_input() -> None:
    target = interpreter(chain(["NEG"], (1, 2, 2, 4)), GpuDelegate())
    x = np.zeros((1, 2, 2, 4), np.float32)
    for number in range(3000):
        x[...] = number
        target.set_tensor(0, x)
        target.invoke()
        assert target.get_tensor(1)[0, 1, 1, 3] == -number


def test_views_of_tensors() -> None:
    target = interpreter(chain(["NEG"], (1, 2, 2, 4)), GpuDelegate())
    source, result = target.tensor(0), target.tensor(1)
    for number in (3.0, 4.0):
        source()[...] = number
        target.invoke()
        assert (result() == -number).all()


def test_outputs_that_are_inputs_and_constants() -> None:
    writer = ModelWriter()
    x = writer.input((1, 2, 2, 4))
    fixed = writer.constant(random(1, 3, 3, 2), name="fixed")
    writer.output(x, step(writer, "NEG", x), fixed)
    model, value = writer.build(), random(1, 2, 2, 4, seed=5)
    assert_close(run(interpreter(model, GpuDelegate()), value), reference(model, value))


def test_a_model_without_operations() -> None:
    writer = ModelWriter()
    x = writer.input((1, 4))
    writer.output(x)
    delegate = GpuDelegate()
    value = random(1, 4)
    assert_close(run(interpreter(writer.build(), delegate), value), [value])
    assert delegate.report is not None and delegate.report.delegated_nodes == []


def test_a_model_of_scalars_and_low_ranks() -> None:
    writer = ModelWriter()
    scalar, line = writer.input((), name="scalar"), writer.input((5,), name="line")
    writer.output(writer.op("MUL", [line, scalar], [(5,)]), step(writer, "NEG", scalar))
    model = writer.build()
    values = (np.array(2.5, np.float32), random(5))
    assert_close(run(interpreter(model, GpuDelegate()), *values), reference(model, *values))


def test_nothing_supported() -> None:
    model, x = chain([CPU_ONLY, CPU_ONLY]), random(1, 4, 4, 4)
    delegate = GpuDelegate()
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert delegate.report is not None
    assert delegate.report.delegated_nodes == []
    assert [node.index for node in delegate.report.rejected] == [0, 1]
    assert delegate.report.rejected[0].reason == WHY_ON_CPU
