"""Properties of a delegate from its creation to its end."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import pytest

from litegpu import GpuDelegate, InterpreterError, ModelError, OptionsError
from litegpu.runtime_abi import (
    bridge,
    kernel_slots,
    structs,
)
from small_models import CPU_ONLY, chain, interpreter, random, run, shifted


def test_a_delegate_says_what_it_is_and_what_it_does() -> None:
    delegate = GpuDelegate(precision="fp16")
    start = f"<GpuDelegate on {delegate.device.title}, fp16: "
    assert repr(delegate) == f"{start}not applied>"
    target = interpreter(chain(["ABS", CPU_ONLY]), delegate)
    assert repr(delegate) == f"{start}1 of 2 nodes>"
    delegate.close()
    assert repr(delegate) == f"{start}closed>"
    del target


def test_the_report_is_of_the_present_shapes() -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["EXP", "SOFTMAX", "SOFTMAX"], (1, 8, 8, 4)), delegate)
    report = delegate.report
    assert report is not None
    for batch in (50, 1):
        target.resize_tensor_input(0, [batch, 8, 8, 4])
        target.allocate_tensors()
        run(target, random(batch, 8, 8, 4))
        now = delegate.report
        assert now is not None
        sizes = [part.lower_bound_bytes for part in now.partitions]
        assert sizes == [batch * part.lower_bound_bytes for part in report.partitions]
    assert now == report


def test_an_error_is_over_when_what_failed_works_again() -> None:
    delegate = GpuDelegate()
    target = interpreter(shifted(), delegate)
    target.resize_tensor_input(0, [2, 3])
    with pytest.raises(RuntimeError, match="cannot run with the input shapes"):
        target.allocate_tensors()
    assert isinstance(delegate.error, ModelError)
    target.resize_tensor_input(0, [3, 4])
    target.allocate_tensors()
    assert delegate.error is None


def test_a_delegate_cannot_be_closed_by_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS"]), delegate)
    target.invoke()
    kernel: Any = kernel_slots.kernels()[-1]
    with monkeypatch.context() as broken:
        broken.setattr(kernel, "_run", delegate.close)
        with pytest.raises(RuntimeError, match="cannot be closed during one of its own calls"):
            target.invoke()
    x = random(1, 4, 4, 4)
    assert (run(target, x)[0] == abs(x)).all()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_time_limit_that_is_none(limit: int) -> None:
    with pytest.raises(OptionsError, match=f"at least 1 millisecond, not {limit}"):
        GpuDelegate(invoke_timeout_ms=limit)
    with pytest.raises(OptionsError, match="invoke_timeout_ms must be a whole number, not '5'"):
        GpuDelegate(invoke_timeout_ms="5")  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit", "seconds"), [(None, None), (60_000, 60.0)])
def test_a_time_limit_reaches_the_device(limit: int | None, seconds: float | None) -> None:
    """`tests/robustness` tests this on devices."""
    target = interpreter(chain(["ABS"]), GpuDelegate(invoke_timeout_ms=limit))
    for shape in ([1, 4, 4, 4], [2, 4, 4, 4]):
        target.resize_tensor_input(0, shape)
        target.allocate_tensors()
        kernel: Any = kernel_slots.kernels()[-1]
        assert kernel.compiled.context.timeout == seconds


def test_a_runtime_that_replaces_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Eager:
        """A fake applicant that requests node 0."""

        error: BaseException | None = None

        def _apply(self, _context: int, _preview: object) -> list[list[int]]:
            return [[0]]

        def _take_kernel(self, _context: int, _subset: object) -> Any:
            raise AssertionError

        def _release_untaken(self, _context: int) -> None: ...

        def _fail(self, error: BaseException) -> None:
            self.error = error

        def _prepared(self, _kernel: object, _error: object) -> None:
            raise AssertionError

    reported: list[bytes] = []
    context = structs.TfLiteContext()
    context.ReplaceNodeSubsetsWithDelegateKernels = structs.REPLACE_NODE_SUBSETS(lambda *_: 7)
    context.ReportError = structs.REPORT_ERROR(lambda _, text: reported.append(text))
    eager = Eager()
    native = bridge.NativeDelegate(eager)
    struct = structs.TfLiteDelegate.from_address(native.address)
    with caplog.at_level(logging.WARNING):
        assert struct.Prepare(ctypes.addressof(context), native.address) == 1
    assert isinstance(eager.error, InterpreterError)
    assert (
        b"TfLiteGpuDelegate Prepare: The runtime does not replace nodes (status 7)" in reported[0]
    )
    assert not caplog.records, "the model does not run on the CPU"
