"""Tables and progress bars: widths, shortened columns, and output to a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from litegpu.tools.console import note, print_table, progress

COLUMNS = ("name", ">size", "?kind", "?>share")
ROWS = [("a/rather/long/name", "12", "plain", "5%"), ("b", "1234567", "", "100%")]


def table(width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: object) -> list[str]:
    assert isinstance(capsys, pytest.CaptureFixture)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS)
    lines: list[str] = capsys.readouterr().out.splitlines()
    return lines


def test_a_table_as_wide_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(None, monkeypatch, capsys) == [
        "",
        "name                    size   kind    share",
        "────────────────────────────────────────────",
        "a/rather/long/name        12   plain      5%",
        "b                    1234567            100%",
    ]
    assert table(44, monkeypatch, capsys)[1:] == table(None, monkeypatch, capsys)[1:]


def test_gaps_then_columns_then_cells_give_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(43, monkeypatch, capsys)[1] == "name                   size  kind   share"
    assert table(40, monkeypatch, capsys)[1:] == [
        "name                    size   kind",
        "────────────────────────────────────",
        "a/rather/long/name        12   plain",
        "b                    1234567",
        "(on a wider terminal: share)",
    ]
    assert table(20, monkeypatch, capsys)[1:6] == [
        "name            size",
        "────────────────────",
        "a/rather/lo       12",
        "ng/name",
        "b            1234567",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_told_to_a_terminal_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress(range(3), "GPU")) == [0, 1, 2]
    text = terminal.getvalue()
    assert text.startswith("\rGPU: 0 of 3")
    assert text.endswith("\r" + " " * len("GPU: 0 of 3") + "\r")


def test_progress_says_how_fast_it_is_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    seconds = iter((0.0, 0.0, 2.0, 4.0, 6.0))
    monkeypatch.setattr("litegpu.tools.console.time.monotonic", lambda: next(seconds))
    assert list(progress((item for item in "abcd"), "pictures", total=200)) == list("abcd")
    lines = [line.rstrip() for line in terminal.getvalue().split("\r")]
    assert lines[:2] == ["", "pictures: [....................] 1 of 200, 0.5/s, 0:06:38 left"]
    assert lines[3] == "pictures: [....................] 3 of 200, 0.5/s, 0:06:34 left"


def test_progress_that_is_left_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    steps = progress(range(3), "GPU")
    next(iter(steps))
    del steps
    assert terminal.getvalue().endswith(" \r")


def test_files_are_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(3), "GPU")) == [0, 1, 2]
    note("done")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "done\n")
