"""What an error follows from."""

from __future__ import annotations

from litegpu.errors import causes


def test_an_error_may_be_its_own_cause() -> None:
    first, second = ValueError("first"), KeyError("second")
    second.__cause__ = first
    first.__cause__ = first
    assert list(causes(second)) == [second, first]
    first.__cause__, first.__context__ = None, second
    assert list(causes(second)) == [second, first]
