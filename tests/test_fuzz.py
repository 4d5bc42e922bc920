"""Damaged models, a few of each kind: `tests/fuzz.py` runs as many as there is time for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fuzzing.judge import Finding, Judge, verdict
from fuzzing.mutations import MUTATIONS, Draft, NotApplicableError, mutate, pack, parse
from fuzzing.seeds import all_seeds
from fuzzing.worker import Arrays, Result, Task, Worker, perform
from litegpu import backends

SEEDS = all_seeds(with_large=False)
MUTANTS_PER_FAMILY = 2


def few_of_each_family() -> list[tuple[str, int]]:
    """Return mutants of each family of cases, from models that lie apart in the table."""
    families: dict[str, list[str]] = {}
    for name in SEEDS:
        families.setdefault(name.partition("-")[0], []).append(name)
    return [
        (names[len(names) * part // MUTANTS_PER_FAMILY], number + 1)
        for number, names in enumerate(families.values())
        for part in range(MUTANTS_PER_FAMILY)
    ]


@pytest.mark.slow
@pytest.mark.skipif(not backends.list_devices(), reason="there is no device of any backend")
def test_damaged_models_run_as_on_the_cpu_or_are_refused() -> None:
    judge = Judge(SEEDS, {})
    try:
        for name, number in few_of_each_family():
            judge.try_one(name, number)
    finally:
        judge.close()
    assert not judge.tally.findings, "\n".join(map(str, judge.tally.findings))
    # Otherwise nothing of the above has been seen.
    assert judge.tally.outcomes["same, on the device"] > 20, judge.tally.outcomes
    assert judge.tally.outcomes["refused"] > 10, judge.tally.outcomes


@pytest.mark.parametrize("change", dict.fromkeys(MUTATIONS), ids=lambda change: change.__name__)
def test_every_mutation_changes_some_model(change: Callable[[Draft], str]) -> None:
    for number, source in enumerate(list(SEEDS.values())[::20]):
        content = source()
        draft = Draft(parse(content), np.random.default_rng(number))
        try:
            text = change(draft)
            changed = pack(draft.model) != pack(parse(content))
        except (NotApplicableError, TypeError, OverflowError):
            continue
        if text and changed:
            return
    pytest.fail(f"{change.__name__} changed no model")


def test_a_mutant_is_made_again_from_its_number() -> None:
    content = SEEDS["convolutions"]()
    first, second = (mutate(content, np.random.default_rng(7)) for _ in range(2))
    assert first == second
    assert first[1]
    assert first[0] != mutate(content, np.random.default_rng(8))[0]


def test_a_model_that_was_only_packed_again_runs_as_before() -> None:
    content = SEEDS["chain"]()
    results = [perform(Task(each, seed=1)) for each in (content, pack(parse(content)))]
    assert [result.status for result in results] == ["ran", "ran"]
    assert results[0].outputs[0].tobytes() == results[1].outputs[0].tobytes()


@pytest.mark.skipif(not backends.list_devices(), reason="there is no device of any backend")
def test_the_command_line() -> None:
    """A model that is not changed at all does what it does on the CPU."""
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), "--only", "chain:0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "1 same, on the device" in found.stdout


def test_a_finding_is_kept(tmp_path: Path) -> None:
    judge = Judge(SEEDS, {})
    path = judge.save(Finding("chain:7", ("changed",), "wrong"), tmp_path)
    assert path.read_bytes() == judge.mutant("chain", 7)[0].content
    assert str(Finding("chain:7", ("changed",), "wrong")) == "chain:7: changed\n    wrong"


# The processes


def abort(_: Task) -> Result:
    """Crash, as native code does."""
    os.abort()


def sleep(_: Task) -> Result:
    """Never come to an end."""
    time.sleep(3600)
    return Result("ran")


@pytest.mark.parametrize(
    ("work", "status", "seconds"), [(abort, "crashed", 60.0), (sleep, "hung", 0.2)]
)
def test_a_process_that_gives_no_answer(
    work: Callable[[Task], Result], status: str, seconds: float
) -> None:
    worker = Worker(work=work)
    try:
        for _ in range(2):  # another process takes over
            assert worker.run(Task(b"", 0), seconds).status == status
    finally:
        worker.close()


# The verdicts


def ran(*values: float, dtype: str = "float32") -> Result:
    outputs: Arrays = (np.array(values, dtype),)
    return Result("ran", outputs)


NAN, REFUSED = float("nan"), Result("refused", text="no")


@pytest.mark.parametrize(
    ("expected", "got", "problem"),
    [
        (ran(1, 2), ran(1, 2), ""),
        (ran(1, 2), ran(1, 2.00001), ""),
        (ran(1, 2), ran(1, 2.1), "error 0.0447"),
        (ran(1, 2), ran(1, NAN), "not finite: expected [2.], got [nan]"),
        (ran(NAN), ran(0), "other infinities or NaNs: expected [nan], got [0.]"),
        (ran(NAN), ran(NAN), ""),
        (ran(3.4028235e38), ran(float("inf")), ""),
        (ran(1), ran(1, 1), "float32(2,) instead of float32(1,)"),
        (ran(1, dtype="int32"), ran(2, dtype="int32"), "expected [1], got [2]"),
        (ran(1), REFUSED, "the CPU runs it, the delegate refuses: no"),
        (ran(1), Result("crashed", text="exit code -6"), "the process crashed: exit code -6"),
        (ran(1), Result("ran", fault="late"), "accepted nodes fail later: late"),
        (REFUSED, ran(1), ""),
        (REFUSED, Result("hung", text="too long"), "the process hung: too long"),
    ],
)
def test_verdict(expected: Result, got: Result, problem: str) -> None:
    found = verdict(expected, got, half=False)
    assert problem in found and bool(problem) == bool(found)


def test_what_half_cannot_hold() -> None:
    assert not verdict(ran(1e5), ran(65504), half=True)
    assert not verdict(ran(1e5), ran(1e5), half=True)
    assert "error" in verdict(ran(1e4), ran(65504), half=True)


def test_shapes_alone() -> None:
    assert not verdict(ran(1), ran(2), half=False, values=False)
    assert verdict(ran(1), ran(2, 2), half=False, values=False)
