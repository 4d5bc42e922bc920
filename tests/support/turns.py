"""What tests run in turns, for time, and what asks for all of it: LITEGPU_TEST_ALL=1."""

from __future__ import annotations

import os
import subprocess
import typing
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

if typing.TYPE_CHECKING:
    from cases.base import Case

ALL = os.environ.get("LITEGPU_TEST_ALL", "") not in ("", "0")
"""Whether everything runs, in every way, as optimized as users have it."""


@cache
def of_commit() -> int:
    """Return 0 or 1, as the checked-out commit has it: what waits for one commit runs at another.

    Without git it is 0.
    """
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(done.stdout.strip()[-1], 16) % 2


def turn(key: str, count: int) -> int:
    """Return a number below `count` that is the key's own, on every machine and each day."""
    return zlib.crc32(key.encode()) % count


def share(cases: Sequence[Case], number: int, count: int) -> tuple[Case, ...]:
    """Return one of `count` shares of cases, in their order, and all of them if they are fewer.

    Their names deal them out, so that no pattern of a table decides what a share has.
    """
    if len(cases) < count:
        return tuple(cases)
    dealt = sorted(cases, key=lambda case: turn(case.name, 1 << 32))[number::count]
    return tuple(case for case in cases if case in dealt)


NOT_ITS_TURN = "not its turn: LITEGPU_TEST_ALL=1 runs everything"
"""Why a test is skipped where others of its kind run."""
