"""Interpreters, delegates and models may be deleted in any order."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.runtime_abi import bridge
from small_models import RUNTIME, assert_close, chain, fully_convolutional, interpreter, random, run

pytestmark = pytest.mark.usefixtures("nothing_of_earlier_tests")


@pytest.mark.parametrize("order", [*itertools.permutations(["interpreter", "delegate", "model"])])
@pytest.mark.parametrize("resized", [False, True])
def test_dropping_in_every_order(order: tuple[str, ...], resized: bool) -> None:
    live = bridge.live_kernels()
    model = bytes(bytearray(fully_convolutional()))  # not shared with any cache
    objects: dict[str, Any] = {"model": model, "delegate": GpuDelegate()}
    del model
    target = RUNTIME.Interpreter(
        model_content=objects["model"], experimental_delegates=[objects["delegate"]]
    )
    target.allocate_tensors()
    objects["interpreter"] = target
    del target
    x = random(1, 9, 7, 3)
    if resized:
        x = random(2, 9, 7, 3)
        objects["interpreter"].resize_tensor_input(0, x.shape)
        objects["interpreter"].allocate_tensors()
    before = run(objects["interpreter"], x)
    for name in order:
        del objects[name]
        gc.collect()
        if "interpreter" in objects:
            np.testing.assert_array_equal(run(objects["interpreter"], x)[0], before[0])
            objects["interpreter"].resize_tensor_input(0, x.shape)
            objects["interpreter"].allocate_tensors()
    assert bridge.live_kernels() == live


def test_a_delegate_goes_with_the_last_interpreter() -> None:
    delegate = GpuDelegate()
    watch = weakref.ref(delegate)
    first, second = (interpreter(chain(["ABS"]), delegate) for _ in range(2))
    del delegate, first
    gc.collect()
    assert watch() is not None
    assert_close(run(second, random(1, 4, 4, 4)), [abs(random(1, 4, 4, 4))])
    del second
    gc.collect()
    assert watch() is None


def test_a_delegate_that_was_never_used_goes_at_once() -> None:
    watch = weakref.ref(GpuDelegate())
    assert watch() is None


def test_an_interpreter_in_a_cycle() -> None:
    """Python's collector clears such an interpreter and its delegate in no fixed order."""
    live = bridge.live_kernels()
    for _ in range(3):
        target = interpreter(chain(["ABS"]), GpuDelegate())
        target.itself = [target]
        del target
    gc.collect()
    assert bridge.live_kernels() == live


def test_a_delegate_in_a_cycle_with_its_interpreter() -> None:
    live = bridge.live_kernels()
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"]), delegate)
    delegate.owner = target  # type: ignore[attr-defined]
    del target, delegate
    gc.collect()
    assert bridge.live_kernels() == live


def test_two_interpreters_of_one_delegate_dropped_one_by_one() -> None:
    live = bridge.live_kernels()
    delegate = GpuDelegate()
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    targets = [interpreter(model, delegate) for _ in range(3)]
    del delegate
    expected = run(targets[0], x)
    while targets:
        targets.pop(0)
        gc.collect()
        for output in [run(target, x)[0] for target in targets]:
            np.testing.assert_array_equal(output, expected[0])
    assert bridge.live_kernels() == live


def test_a_view_of_a_tensor_outlives_the_names_of_its_interpreter() -> None:
    target = interpreter(chain(["NEG"], (1, 2, 2, 4)), GpuDelegate())
    target.tensor(0)()[...] = 2.0
    target.invoke()
    view = target.tensor(1)()
    del target
    gc.collect()
    assert (view == -2.0).all()
