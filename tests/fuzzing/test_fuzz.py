"""Some damaged models of each kind; `tests/support/fuzz.py` runs any number."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import small_models
import turns
from fuzzing.damage import damage, structure
from fuzzing.mutations import (
    MUTATIONS,
    Draft,
    NotApplicableError,
    mutate,
    pack,
    parse,
    without_subnormals,
)
from fuzzing.oracle import Finding, Oracle, verdict
from fuzzing.rounding import hangs_on_rounding
from fuzzing.seeds import all_seeds
from fuzzing.worker import Arrays, Result, Task, Worker, perform
from litegpu.zoo.writer import ModelWriter
from places import SUPPORT

SEEDS = all_seeds(with_large=False)
MUTANTS_PER_FAMILY = 2


def few_of_each_family() -> list[tuple[str, int]]:
    """Return mutants of families of cases, from models that lie apart in the table.

    Of all families a third; the commit decides which.
    """
    families: dict[str, list[str]] = {}
    for name in SEEDS:
        families.setdefault(name.partition("-")[0], []).append(name)
    return [
        (names[len(names) * part // MUTANTS_PER_FAMILY], number + 1)
        for number, names in enumerate(families.values())
        for part in range(MUTANTS_PER_FAMILY)
        if turns.ALL or number % 3 == turns.of_commit(3)
    ]


@pytest.mark.slow
def test_damaged_models_run_as_on_the_cpu_or_are_refused() -> None:
    oracle = Oracle(SEEDS, {})
    try:
        for name, number in few_of_each_family():
            oracle.try_one(name, number)
    finally:
        oracle.close()
    assert not oracle.tally.findings, "\n".join(map(str, oracle.tally.findings))
    # Otherwise nothing of the above has been seen.
    assert oracle.tally.outcomes["same, on the device"] > 6, oracle.tally.outcomes
    assert oracle.tally.outcomes["refused"] > 3, oracle.tally.outcomes


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


def test_the_command_line() -> None:
    """A model that is not changed at all does what it does on the CPU."""
    command = [sys.executable, str(SUPPORT / "fuzz.py"), "--only", "chain:0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "1 same, on the device" in found.stdout


def test_a_finding_is_kept(tmp_path: Path) -> None:
    oracle = Oracle(SEEDS, {})
    path = oracle.save(Finding("chain:7", ("changed",), "wrong"), tmp_path)
    assert path.read_bytes() == oracle.mutant("chain", 7)[0].content
    assert str(Finding("chain:7", ("changed",), "wrong")) == "chain:7: changed\n    wrong"


# Other kinds


@pytest.mark.parametrize(
    ("kind", "count", "seen"),
    [
        *(("files", 60, "refused"), ("flexbuffers", 3, "read"), ("resize", 3, "same, in")),
        ("kept", 2, "same, with"),
    ],
)
def test_a_few_of_each_kind(kind: str, count: int, seen: str) -> None:
    program = SUPPORT / "fuzz.py"
    command = [sys.executable, str(program), "--kind", kind, "--count", str(count), "--jobs", "2"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert seen in found.stdout


def test_damage_is_made_again_and_falls_on_the_structure() -> None:
    content = small_models.fully_convolutional()
    first, second = (damage(content, np.random.default_rng(7)) for _ in range(2))
    assert first == second and first[0] != content and first[1]
    ranges = structure(content)
    assert sum(end - start for start, end in ranges) < len(content)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))


def cancelling() -> bytes:
    """Return a model that adds 1e8 x, x and -1e8 x."""
    writer = ModelWriter()
    x = writer.input((1, 1))
    three = writer.op("CONCATENATION", [x, x, x], [(1, 3)], options={"axis": 1})
    weights = writer.constant(np.array([[1e8, 1, -1e8], [1, 1, 1]], np.float32))
    writer.output(writer.op("FULLY_CONNECTED", [three, weights, None], [(1, 2)]))
    return writer.build()


@pytest.mark.parametrize(("change", "excused"), [((4, 0), True), ((0, 0.01), False)])
def test_a_sum_that_cancels_is_no_judge(change: tuple[float, float], excused: bool) -> None:
    task = Task(cancelling(), seed=1)
    expected = perform(task).outputs
    got = (expected[0] + np.array([change], np.float32),)
    # The exact sum decides about both outputs together: keep them apart.
    columns = [(expected[0][:, i : i + 1], got[0][:, i : i + 1]) for i in range(2)]
    found = []
    for index, (wanted, given) in enumerate(columns):

        def run(each: Task, index: int = index) -> Result:
            return Result("ran", (perform(each).outputs[0][:, index : index + 1],))

        found.append(hangs_on_rounding(run, task, (wanted,), (given,)))
    assert all(found) == excused


def test_results_that_cancel_are_no_judge_whatever_the_inputs() -> None:
    """1e9 less itself: no change of an input changes that, but rounding on the way does."""
    writer = ModelWriter()
    x = writer.input((1, 4))
    large = writer.constant(np.full(4, 1e9, np.float32))
    products = [writer.op("MUL", [x, large], [x.shape], options=NONE) for _ in range(2)]
    writer.output(writer.op("SUB", products, [x.shape], options=NONE))
    task = Task(writer.build(), seed=1)
    (expected,) = perform(task).outputs
    assert not expected.any()
    assert hangs_on_rounding(perform, task, (expected,), (expected + np.float32(50),))
    assert not hangs_on_rounding(perform, task, (expected,), (expected + np.float32(1e7),))


NONE = {"fused_activation_function": "NONE"}


def test_numbers_below_the_normal_range_are_left_out_where_a_device_may_lose_them() -> None:
    writer = ModelWriter()
    x = writer.input((1, 64))
    small = writer.constant(np.full(64, 1e-40, np.float32))
    writer.output(x, writer.op("ABS", [small], [(64,)]))
    content = writer.build()
    outputs = {
        flushed: perform(Task(computed, 4, special=True, flushed=flushed)).outputs
        for flushed, computed in ((False, content), (True, without_subnormals(content)))
    }
    for given, constant in zip(*outputs.values(), strict=True):
        tiny = (given != 0) & (np.abs(given) < 1e-38)
        np.testing.assert_array_equal(np.where(tiny, 0, given), constant)
        assert tiny.any()


def test_integers_are_excused_only_where_they_change_on_the_cpu() -> None:
    one, two = (np.array([n], np.int32) for n in (1, 2))
    task = Task(cancelling(), seed=1)
    assert not hangs_on_rounding(lambda _: Result("ran", (one,)), task, (one,), (two,))
    assert hangs_on_rounding(lambda _: Result("ran", (two,)), task, (one,), (two,))


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


class Crashing:
    """Answers as a process that crashes whenever it runs a model, with `accepted` on a device."""

    def __init__(self, *accepted: str) -> None:
        self._accepted = accepted

    def run(self, task: Task, _: float) -> Result:
        return Result("crashed") if task.invoked else Result("ran", accepted=self._accepted)

    def close(self) -> None:
        """End nothing."""


class Running(Crashing):
    """Answers as one that runs every model."""

    def run(self, task: Task, _: float) -> Result:
        return Result("ran")


@pytest.mark.parametrize(("accepted", "outcome"), [((), "CPU crashes"), (("ADD",), "wrong")])
def test_a_crash_is_the_cpus_where_the_delegate_takes_nothing(
    accepted: tuple[str, ...], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = Oracle(SEEDS, {})
    monkeypatch.setattr(oracle, "_cpu", Running())
    monkeypatch.setattr(oracle, "_device", Crashing(*accepted))
    monkeypatch.setattr(oracle, "_repeats", lambda *_: True)
    task, _changes = oracle.mutant(next(iter(SEEDS)), 0)
    assert oracle.outcome(task)[0] == outcome


@pytest.mark.parametrize(("divisor", "outcome"), [(0.0, "left out"), (2.0, "wrong")])
def test_an_infinity_that_the_cpu_cuts_is_one_on_a_device(divisor: float, outcome: str) -> None:
    """A difference of x / 0 is 0 to the CPU, which takes the largest float for the infinity."""
    writer = ModelWriter()
    x = writer.input((1, 4))
    operands = [x, writer.constant(np.full(4, divisor, np.float32))]
    quotients = [writer.op("DIV", operands, [x.shape], options=NONE) for _ in range(2)]
    writer.output(writer.op("SUB", quotients, [x.shape], options=NONE))

    class NoNumbers:
        def run(self, task: Task, _: float) -> Result:
            return Result("ran", (np.full((1, 4), NAN, np.float32),), accepted=("DIV",))

    oracle = Oracle(SEEDS, {})
    with mock.patch.object(oracle, "_device", NoNumbers()):
        assert oracle.outcome(Task(writer.build(), 1))[0] == outcome
    oracle.close()


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
        (ran(3e37), ran(float("inf")), ""),
        (ran(3e37), ran(1), "error 1"),
        (ran(3e37), ran(NAN), "not finite"),
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
    """It is stored as float32, and no other number counts as right."""
    assert "error 0.345" in verdict(ran(1e5), ran(65504), half=True)
    assert not verdict(ran(1e5), ran(1.001e5), half=True)


def test_some_compilers_assume_that_there_is_no_nan() -> None:
    assert not verdict(ran(1, NAN), ran(1, 5), half=False, loose=True)
    assert verdict(ran(1, 5), ran(1, NAN), half=False, loose=True)
    assert verdict(ran(1, NAN), ran(2, NAN), half=False, loose=True)


def test_shapes_alone() -> None:
    assert not verdict(ran(1), ran(2), half=False, values=False)
    assert verdict(ran(1), ran(2, 2), half=False, values=False)
