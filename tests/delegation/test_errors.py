"""Texts and causes of errors."""

from __future__ import annotations

from litegpu.errors import DeviceLostError, KernelError, causes


def test_an_error_may_be_its_own_cause() -> None:
    first, second = ValueError("first"), KeyError("second")
    second.__cause__ = first
    first.__cause__ = first
    assert list(causes(second)) == [second, first]
    first.__cause__, first.__context__ = None, second
    assert list(causes(second)) == [second, first]


def test_the_reason_of_a_loss_is_all_but_the_advice() -> None:
    """Messages of a driver may contain any text."""
    error = DeviceLostError("It is lost: no Make file. Make one.", "Make an interpreter.")
    assert error.reason == "It is lost: no Make file. Make one."
    assert str(error) == "It is lost: no Make file. Make one. Make an interpreter."
    assert str(DeviceLostError("It is gone.")) == "It is gone."


def test_rejected_kernels_are_named_with_all_that_is_said_of_them() -> None:
    one = KernelError("Device x", {"a": "warning\nerror: no b.\n"})
    assert str(one).startswith("Device x rejects a kernel: a: warning\nerror: no b. LITEGPU_DEBUG")
    assert one.reasons == {"a": "error: no b."}
    both = KernelError("Device x", {"a": "no b", "c": "no d"})
    assert str(both).startswith("Device x rejects kernels: a: no b; c: no d. LITEGPU_DEBUG=2")
