"""Tensors in a device's pinned memory: when they are bound, and that results remain valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate, InterpreterError
from litegpu.backends.buffers import Bindings, HostBuffer, MemoryKind
from litegpu.backends.opencl.context import OpenCLContext
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.options import InferencePriority
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.reader import tensor_at
from litegpu.runtime_abi.zero_copy import ZeroCopyBinding
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, assert_close, chain, interpreter, random, reference, run

MODEL = chain(["ABS", "NEG"], (3, 5))


class Ledger:
    """Gives OpenCL's contexts pinned memory, as CUDA's have it, and notes what is bound to it."""

    def __init__(self) -> None:
        self.memory: dict[OpenCLContext, Bindings] = {}
        self.bound: list[int] = []
        self.bindings: list[tuple[ZeroCopyBinding, int]] = []

    def pinned(self, context: OpenCLContext) -> Bindings:
        program = context.program
        if context not in self.memory:
            self.memory[context] = Bindings(
                tuple(filled(part.size) for part in program.inputs),
                tuple(filled(part.size) for part in program.outputs),
            )
        return self.memory[context]


def filled(nbytes: int) -> HostBuffer:
    buffer = HostBuffer.allocate(nbytes, MemoryKind.PINNED)
    buffer.write(np.full(nbytes, 0xFF, np.uint8))
    return buffer


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    book, bind = Ledger(), ZeroCopyBinding.bind

    def noted(self: ZeroCopyBinding, context: int, *arguments: Any) -> None:
        bind(self, context, *arguments)
        book.bound = [ours for _, _, ours, _ in self._bound]
        book.bindings.append((self, context))

    monkeypatch.setattr(OpenCLContext, "pinned", lambda self: book.pinned(self))
    monkeypatch.setattr(ZeroCopyBinding, "bind", noted)
    return book


def addresses(target: Any) -> list[int]:
    """Return where the data of the inputs and outputs lie."""
    details = [*target.get_input_details(), *target.get_output_details()]
    return [int(target.tensor(detail["index"])().ctypes.data) for detail in details]


def test_a_partition_that_is_alone_is_bound_from_the_first_run_on(ledger: Ledger) -> None:
    target = interpreter(MODEL, GpuDelegate())
    for _ in range(3):
        x = random(3, 5)
        assert_close(run(target, x), reference(MODEL, x))  # data set before is not lost
        assert addresses(target) == ledger.bound
        target.allocate_tensors()
    assert len(ledger.bindings) == 1


def test_a_new_shape_ends_the_binding_and_begins_another(ledger: Ledger) -> None:
    target = interpreter(MODEL, GpuDelegate())
    run(target, random(3, 5))
    first, index = ledger.bound, target.get_input_details()[0]["index"]
    x = random(40, 5)
    target.resize_tensor_input(index, x.shape)
    with pytest.raises(ValueError, match="allocate_tensors"):
        target.set_tensor(index, x)  # larger than what it was bound to
    target.allocate_tensors()
    assert not set(addresses(target)) & set(first)
    assert_close(run(target, x), reference(MODEL, x))
    assert addresses(target) == ledger.bound != first


def test_a_profile_runs_where_invokes_do(ledger: Ledger) -> None:
    delegate, x = GpuDelegate(), random(3, 5)
    target = interpreter(MODEL, delegate)
    run(target, random(3, 5, seed=1))
    target.set_tensor(target.get_input_details()[0]["index"], x)
    delegate.profile(repeats=1, peaks=False)
    output = target.get_output_details()[0]["index"]
    assert_close([target.get_tensor(output)], reference(MODEL, x))
    assert addresses(target) == ledger.bound


def test_what_is_bound_gets_its_address_back(ledger: Ledger) -> None:
    target = interpreter(MODEL, GpuDelegate())
    before = addresses(target)
    run(target, random(3, 5))
    assert not set(addresses(target)) & set(before)
    (binding,) = ledger.bindings
    binding[0].unbind(binding[1])
    assert addresses(target) == before
    x = random(3, 5)
    assert_close(run(target, x), reference(MODEL, x))


def test_a_value_that_half_cannot_hold_moves_the_binding(ledger: Ledger) -> None:
    """The invoke goes on in the memory of another context, with the data of the first."""
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 8))
    square = writer.op("MUL", [x, x], [x.shape])
    pooled = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
    pooled |= {"filter_height": 2, "filter_width": 2}
    writer.output(writer.op("MAX_POOL_2D", [square], [(1, 3, 3, 8)], options=pooled))
    model, values = writer.build(), random(1, 4, 4, 8) * 1000
    delegate = GpuDelegate(precision="fp16", inference_priority1=InferencePriority.MIN_MEMORY_USAGE)
    target = interpreter(model, delegate)
    for _ in range(2):
        assert_close(run(target, values), reference(model, values))
        assert addresses(target) == ledger.bound
    assert len(ledger.bindings) == 2
    target.allocate_tensors()
    assert_close(run(target, values), reference(model, values))


def test_beside_nodes_on_the_cpu_nothing_is_bound(ledger: Ledger) -> None:
    """Such a node may make the runtime move its tensors while the model runs."""
    model, x = chain(["ABS", CPU_ONLY], (3, 5)), random(3, 5)
    target = interpreter(model, GpuDelegate())
    assert_close(run(target, x), reference(model, x))
    assert ledger.bindings == []


def test_nor_with_several_partitions(ledger: Ledger) -> None:
    """A tensor between two of them has one address, but each has memory of its own."""
    model, x = chain(["ABS", CPU_ONLY, "NEG"], (3, 5)), random(3, 5)
    delegate = GpuDelegate(max_delegated_partitions=2)
    target = interpreter(model, delegate)
    assert_close(run(target, x), reference(model, x))
    assert delegate.report is not None
    assert len(delegate.report.partitions) == 2
    assert ledger.bindings == []


@pytest.mark.parametrize("position", [0, -1])
@pytest.mark.parametrize("change", [-4, 4])
def test_a_tensor_of_another_size_is_not_touched(
    position: int, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the runtime does to a tensor, no more is copied than it holds."""
    invoke = PartitionKernel.invoke
    details: Any = []

    def changed(self: PartitionKernel, context: int) -> None:
        tensors = structs.TfLiteContext.from_address(context).tensors or 0
        for detail in details:
            tensor_at(tensors, detail["index"]).bytes += change
        try:
            invoke(self, context)
        finally:
            for detail in details:
                tensor_at(tensors, detail["index"]).bytes -= change

    monkeypatch.setattr(PartitionKernel, "invoke", changed)
    delegate = GpuDelegate()
    target = interpreter(MODEL, delegate)
    details = [(target.get_input_details(), target.get_output_details())[position][0]]
    with pytest.raises(RuntimeError, match=rf"has {60 + change} bytes in .*, and 60 in the"):
        target.invoke()
    assert isinstance(delegate.error, InterpreterError)
    details = []
    assert_close(run(target, random(3, 5)), reference(MODEL, random(3, 5)))


def test_outputs_stay_when_the_delegate_is_closed(ledger: Ledger) -> None:
    """They must not lie in memory that the device has taken back."""
    x = random(3, 5)
    with GpuDelegate() as delegate:
        target = interpreter(MODEL, delegate)
        at_home = addresses(target)
        run(target, x)
        assert addresses(target) == ledger.bound
    assert addresses(target) == at_home
    (output,) = target.get_output_details()
    np.testing.assert_array_equal(target.get_tensor(output["index"]), -abs(x))


def test_a_partition_without_inputs_and_outputs_has_nothing_to_bind(ledger: Ledger) -> None:
    writer = ModelWriter()
    image, size = writer.input((1, 5, 4, 2)), writer.constant((5, 4), "int32")
    writer.op("RESIZE_NEAREST_NEIGHBOR", [image, size], [(1, 5, 4, 2)])
    writer.output()
    delegate = GpuDelegate()
    target = interpreter(writer.build(), delegate)
    target.invoke()
    assert delegate.error is None
    assert len(ledger.bindings) == 1
    assert ledger.bound == []
