"""Tests that are skipped at one commit run at another."""

from __future__ import annotations

from pathlib import Path

import pytest

import turns
from cases import TABLE

TESTS = Path(__file__).parents[1]
CASES = tuple(TABLE.values())[:11]


def at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the checked-out commit have this number."""
    monkeypatch.setattr(turns, "ALL", False)
    monkeypatch.setattr(turns, "of_commit", lambda count: number % count)


def test_a_test_runs_at_one_of_the_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, count in turns.IN_TURN.items():
        file, _, name = module.partition("::")
        text = (TESTS / f"{file}.py").read_text(encoding="utf-8")
        assert f"\ndef {name}(" in text or not name, module
        test = f"tests/{file}.py::{name or 'test_it'}[opencl]"
        left_out = []
        for number in range(count):
            at(monkeypatch, number)
            left_out.append(turns.waits(test))
        assert left_out.count(False) == 1
        monkeypatch.setattr(turns, "ALL", True)
        assert not turns.waits(test)


def test_tests_of_real_models_do_not_wait() -> None:
    for module in turns.IN_TURN:
        file, _, name = module.partition("::")
        text = (TESTS / f"{file}.py").read_text(encoding="utf-8")
        own = text.partition(f"\ndef {name}(")[0].rpartition("\n\n")[2] if name else text
        assert "real_model" not in own, module


def test_other_modules_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        at(monkeypatch, number)
        assert not turns.waits("tests/project/test_turns.py::test_other_modules_do_not_wait")


def test_a_commit_has_a_number() -> None:
    assert all(0 <= turns.of_commit(count) < count for count in (1, 2, 3, 4))
    assert turns.of_commit(4) % 2 == turns.of_commit(2)


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_each_case_is_in_a_share(count: int) -> None:
    shares = [turns.share(CASES, number, count) for number in range(count)]
    assert all(shares)
    assert {case.name for share in shares for case in share} == {case.name for case in CASES}
