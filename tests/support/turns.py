"""Selects the tests of a commit, to save time; LITEGPU_TEST_ALL=1 selects all."""

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


IN_TURN = {
    "fuzzing/test_fuzz": 2,
    "kernels/test_cuda_checks": 3,
    "kernels/test_cuda_compile": 3,
    "kernels/test_cuda_emulated": 3,
    "kernels/test_half_range": 2,
    "kernels/test_inverted": 2,
    "kernels/test_inverted_split": 3,
    "kernels/test_kernel_variants": 2,
    "kernels/test_magnitudes": 2,
    "kernels/test_pooled_conv": 2,
    "kernels/test_separable": 3,
    "kernels/test_separable_stream": 3,
    "project/test_docs_commands": 2,
    "robustness/test_endings": 2,
    "robustness/test_leaks": 2,
    "robustness/test_signals": 2,
    "tools/engines/test_ray_engine": 2,
}
"""Of the tests of these modules, one of so many runs at a commit.

A module that also takes `share` of its cases by commit has a number without a common divisor with
the number of shares: otherwise some cases would never run. No module here has tests of real models:
scripts/check_real_models.py wants all of these to run.
"""


@cache
def of_commit(count: int) -> int:
    """Return a number below `count` that depends on the checked-out commit: 0 without git.

    Tests that are left out at one commit run at another.
    """
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(done.stdout.strip(), 16) % count


def waits(test: str) -> bool:
    """Whether a test, named as pytest names it, is left out at the checked-out commit."""
    module = test.partition(".py::")[0].removeprefix("tests/")
    count = 1 if ALL else IN_TURN.get(module, 1)
    return turn(test, count) != of_commit(count)


def turn(key: str, count: int) -> int:
    """Return a number below `count` that is the key's own, on every machine and each day."""
    return zlib.crc32(key.encode()) % count


def share(cases: Sequence[Case], number: int, count: int) -> tuple[Case, ...]:
    """Return one of `count` shares of cases, in their order; a share has at least one case.

    Their names deal them out, so that no pattern of a table decides what a share has.
    """
    dealt = sorted(cases, key=lambda case: turn(case.name, 1 << 32))
    mine = dealt[number::count] or [dealt[number % len(dealt)]]
    return tuple(case for case in cases if case in mine)


NOT_ITS_TURN = "not its turn: LITEGPU_TEST_ALL=1 runs everything"
"""Why a test is skipped where others of its kind run."""
