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
    "acceleration/test_accelerate": 2,
    "acceleration/test_c_interpreters::test_open_wake_word_runs_on_the_gpu": 2,
    "backends/test_cuda_faults": 2,
    "backends/test_cuda_l2_prefetch": 2,
    "backends/test_opencl_run": 2,
    "benchmarks/test_rivals::test_it_measures_litegpu_and_the_cpu": 2,
    "compiled_model/test_in_flight": 2,
    "compiled_model/test_many_requests": 2,
    "compiled_model/test_others_memory": 2,
    "compiled_model/test_resizes": 3,
    "delegation/test_names": 2,
    "engine/test_fallback": 2,
    "engine/test_tuning": 2,
    "examples/test_examples::test_notebook": 2,
    "examples/test_examples::test_ray_batch": 3,
    "fuzzing/test_fuzz": 2,
    "fuzzing/test_random_decoders": 2,
    "fuzzing/test_random_networks": 3,
    "kernels/test_attention_flash": 3,
    "kernels/test_attention_mma": 3,
    "kernels/test_conv_narrow": 3,
    "kernels/test_conv_patch": 3,
    "kernels/test_conv_stationary": 2,
    "kernels/test_cuda_checks": 7,
    "kernels/test_cuda_compile": 7,
    "kernels/test_cuda_emulated": 7,
    "kernels/test_depthwise_mma": 2,
    "kernels/test_examples": 3,
    "kernels/test_half_range": 3,
    "kernels/test_inverted": 3,
    "kernels/test_inverted_split": 5,
    "kernels/test_kernel_variants": 3,
    "kernels/test_limits": 3,
    "kernels/test_magnitudes": 3,
    "kernels/test_neighbours": 3,
    "kernels/test_pooled_conv": 3,
    "kernels/test_quantized_split": 2,
    "kernels/test_separable": 5,
    "kernels/test_separable_stream": 5,
    "kernels/test_stored_sums": 3,
    "kernels/test_transpose_conv": 3,
    "language_model/test_devices": 2,
    "language_model/test_local_attention": 2,
    "models/test_zoo_models": 3,
    "ops/test_stored_results": 2,
    "ops/test_support::test_odd_operands_are_refused_or_run_never_raise": 2,
    "ops/test_while_loop": 3,
    "project/test_docs_commands": 4,
    "robustness/test_endings": 2,
    "robustness/test_faults": 3,
    "robustness/test_fork": 3,
    "robustness/test_leaks": 2,
    "robustness/test_loss": 3,
    "robustness/test_signals": 3,
    "robustness/test_threads": 3,
    "runtime_abi/test_bridge_faults": 2,
    "runtime_abi/test_bridge_lifetime": 2,
    "runtime_abi/test_runtimes::test_operations_of_every_family": 2,
    "tools/engines/test_decoding": 2,
    "tools/engines/test_ray_engine": 2,
    "tools/reports/test_reports_browser": 2,
    "tools/serve/test_v2::test_limits_of_waiting_requests_and_the_end": 2,
    "tools/serve/test_v2::test_slow_requests_and_slow_readers_end": 2,
    "tools/test_batch_lives": 2,
    "tools/test_newcomer::test_a_home_and_a_current_folder_that_take_no_files": 2,
    "tools/test_per_node": 2,
    "tools/test_picture_evaluation::test_a_ray_cluster": 3,
    "tools/test_sweep": 2,
}
"""Of the tests of these modules, or of one of their functions, one of so many runs at a commit.

A module that also takes `share` of its cases by commit has a number without a common divisor with
the number of shares: otherwise some cases would never run. No test here is one of a real model:
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
    module, _, name = test.removeprefix("tests/").partition(".py::")
    own = IN_TURN.get(f"{module}::{name.partition('[')[0]}", 1)
    count = 1 if ALL else IN_TURN.get(module, own)
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
