"""What tests run in turns, for time, and what asks for all of it: LITEGPU_TEST_ALL=1."""

from __future__ import annotations

import os
import zlib

ALL = os.environ.get("LITEGPU_TEST_ALL", "") not in ("", "0")
"""Whether everything runs, in every way, as optimized as users have it."""


def turn(key: str, count: int) -> int:
    """Return a number below `count` that is the key's own, on every machine and each day."""
    return zlib.crc32(key.encode()) % count


NOT_ITS_TURN = "not its turn: LITEGPU_TEST_ALL=1 runs everything"
"""Why a test is skipped where others of its kind run."""
