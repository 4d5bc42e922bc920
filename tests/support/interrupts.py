"""Raises KeyboardInterrupt at every point where a signal's exception can occur, one at a time."""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Interrupts:
    """Interrupts Python code of some files at the `number`-th place where a signal may do it.

    The interpreter looks for signals when a function begins, after calls and at the end of loops.
    """

    def __init__(self, number: int, files: tuple[str, ...]) -> None:
        """Count places in files whose paths end so."""
        self._left = number
        self._files = files
        self._before: dict[FrameType, int] = {}
        self.place = ""
        """Where it was interrupted, empty if it was not."""

    def run(self, work: Callable[[], object]) -> None:
        """Call `work`, interrupted."""
        # Python 3.12 tells of single instructions only if some frame wanted it before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._trace_call)
        try:
            work()
        finally:
            sys.settrace(None)
            self._before.clear()

    def _trace_call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace_opcode

    def _trace_opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode" or self.place:
            return self._trace_opcode
        last, now = self._before.get(frame), frame.f_lasti
        self._before[frame] = now
        if last is not None and _is_checked(frame.f_code, last, now):
            self._left -= 1
            if self._left < 0:
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace_opcode


def _is_checked(code: CodeType, last: int, now: int) -> bool:
    """Return whether a signal's exception may be raised by the instruction at `last`.

    It is raised before the next one instead, so both must have the same handler.
    """
    name = dis.opname[code.co_code[last]]
    checks = name == "RESUME" or name.startswith(("CALL", "JUMP_BACKWARD"))
    return checks and _handler(code, last) == _handler(code, now)


def _handler(code: CodeType, offset: int) -> int | None:
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        if entry.start <= offset < entry.end:
            found: int = entry.target
            return found
    return None


def _can_interrupt() -> bool:
    if not hasattr(dis, "_parse_exception_table"):
        return False
    interrupts = Interrupts(0, (__file__,))
    with contextlib.suppress(KeyboardInterrupt):
        interrupts.run(lambda: [abs(each) for each in (1, 2)])
    return bool(interrupts.place)


CAN_INTERRUPT = _can_interrupt()
"""Whether this Python tells which instructions an exception handler covers, and of each that runs.

Python 3.10 does not tell the one, 3.13.0 not the other.
"""
