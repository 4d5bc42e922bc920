"""Tables, paragraphs, status lines and progress as plain text that fits the terminal.

Without a terminal, output is neither wrapped nor shortened, so that files and pipes contain whole
rows.
"""

from __future__ import annotations

import datetime
import itertools
import multiprocessing
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import TypeVar

from litegpu import config
from litegpu.progress import OnProgress, Progress, Stage
from litegpu.wording import printable, wrapped

Item = TypeVar("Item")

_GAP, _NARROW_GAP = 3, 2
_NARROWEST = 8
"""Minimum width of a table's column in characters."""
_PARAGRAPH = 80
"""Maximum number of characters in a line of a paragraph."""
UNBROKEN = "\N{NO-BREAK SPACE}"
"""A non-breaking space."""
_MOST = 4000
"""Maximum number of characters of a printed line; lists of ops can be long."""
_REDRAWN_AFTER = 0.1
"""Minimum seconds between updates of a progress line."""
_BAR = 20
"""Width of a progress bar in characters."""


def terminal_width() -> int | None:
    """Return the line width from COLUMNS or the terminal; None if neither is available."""
    if wanted := config.columns():
        return wanted
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a blank line and a table.

    A '>' before a heading aligns the column right. A '?' before that character marks an optional
    column. On a narrow terminal, the function omits optional columns, starting with the last one.
    If the table is still too wide, the function wraps cells.
    """
    cells = [[column.lstrip("?>") for column in columns], *([_clean(c) for c in r] for r in rows)]
    room = terminal_width() or sys.maxsize
    shown_columns = list(range(len(columns)))
    table = _Table(columns, cells, shown_columns, room)
    optional = [index for index in shown_columns if columns[index].startswith("?")]
    while table.width > room and optional:
        shown_columns.remove(optional.pop())
        table = _Table(columns, cells, shown_columns, room)
    table.fold(room)
    heading, *body = ([*table.lines(row)] for row in cells)
    lines = [*heading, "─" * table.width, *(line for row in body for line in row)]
    print("\n" + "\n".join(lines))
    if hidden := [head for index, head in enumerate(cells[0]) if index not in shown_columns]:
        print_text(f"(on a wider terminal: {', '.join(hidden)})")


def print_text(text: str, indent: str = "") -> None:
    """Print a paragraph; all lines but the first start with `indent`."""
    print(paragraph(text, indent))


def paragraph(text: str, indent: str = "") -> str:
    """Wrap text to the terminal's width, or to a default width without a terminal."""
    lines = (printable(line, _MOST) for line in text.split("\n"))
    width = min(terminal_width() or _PARAGRAPH, _PARAGRAPH)
    return wrapped("\n".join(lines), width, indent).replace(UNBROKEN, " ")


def note(message: str) -> None:
    """Print a status message on stderr, after flushing stdout, which is for results."""
    wipe()
    sys.stdout.flush()
    print("\n".join(printable(line, _MOST) for line in message.split("\n")), file=sys.stderr)


def progress(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items`; if stderr is a terminal, show a progress bar with the rate.

    `total` is the number of items; it is required if `items` has no length.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    count = len(items) if isinstance(items, Sized) and total is None else total or 0
    begin, shown = time.monotonic(), 0.0
    try:
        for number, item in enumerate(items):
            now = time.monotonic()
            if now - shown >= _REDRAWN_AFTER:
                shown = now
                _draw(f"{label}: {_pace(number, count, now - begin)}")
            yield item
    finally:
        wipe()


def start_bar() -> OnProgress | None:
    """Return a callback that shows the progress of loading a model; None without a terminal.

    If several processes start, only the first one shows its progress.
    """
    if not sys.stderr.isatty() or multiprocessing.parent_process() is not None:
        return None
    return _draw_start


def _draw_start(now: Progress) -> None:
    if now.stage == "end":
        wipe()
        return
    of_several = f" of partition {now.partition} of {now.partitions}" if now.partitions > 1 else ""
    bar = "#" * (_BAR * now.done // max(now.total, 1))
    counted_steps = f" [{bar:.<{_BAR}}] {now.done} of {now.total}" if now.total else ""
    _draw(f"start{of_several}: {_STAGES[now.stage]}{counted_steps}, {now.seconds:.1f} s")


_STAGES: Mapping[Stage, str] = {
    "choose": "choosing kernels",
    "measure": "measuring kernels",
    "compile": "compiling",
    "load": "loading the cache",
    "run": "first run",
}


def _draw(line: str) -> None:
    """Replace the current progress line."""
    global _drawn
    print("\r" + line.ljust(_drawn), end="", file=sys.stderr, flush=True)
    _drawn = len(line)


def wipe() -> None:
    """Clear the progress line, if any, so that other text can be printed."""
    global _drawn
    if _drawn:
        print("\r" + " " * _drawn, end="\r", file=sys.stderr, flush=True)
        _drawn = 0


_drawn = 0
"""Length of the progress line on the terminal in characters."""


def _pace(done: int, total: int, seconds: float) -> str:
    """Return a progress bar with the completed part, the rate, and the remaining time."""
    progress_text = f"{done} of {total}"
    if not done or not seconds:
        return progress_text
    rate = done / seconds
    bar = "#" * (_BAR * done // max(total, 1))
    left = datetime.timedelta(seconds=round(max(total - done, 0) / rate))
    return f"[{bar:.<{_BAR}}] {progress_text}, {rate:.3g}/s, {left} left"


def _clean(cell: str) -> str:
    return printable(" ".join(cell.split()))


class _Table:
    """The columns of a table, fitted to the available width."""

    def __init__(
        self,
        columns: Sequence[str],
        cells: Sequence[Sequence[str]],
        shown_columns: Iterable[int],
        room: int,
    ) -> None:
        self._widths = {
            position: max(len(row[position]) for row in cells) for position in shown_columns
        }
        self._right = {position for position in self._widths if ">" in columns[position]}
        self._gap = _GAP
        if self.width > room:
            self._gap = _NARROW_GAP

    @property
    def width(self) -> int:
        """Number of characters per row."""
        return sum(self._widths.values()) + self._gap * (len(self._widths) - 1)

    def fold(self, room: int) -> None:
        """Narrow the text columns, the widest first."""
        texts = [position for position in self._widths if position not in self._right]
        while self.width > room:
            widest = max(texts, key=self._widths.__getitem__, default=None)
            if widest is None or self._widths[widest] <= _NARROWEST:
                return
            self._widths[widest] -= 1

    def lines(self, row: Sequence[str]) -> Iterator[str]:
        """Yield the lines of a row; a cell wider than its column is wrapped."""
        parts = [textwrap.wrap(row[position], width) for position, width in self._widths.items()]
        for texts in itertools.zip_longest(*parts, fillvalue=""):
            yield (
                (" " * self._gap)
                .join(
                    text.rjust(width) if position in self._right else text.ljust(width)
                    for text, (position, width) in zip(texts, self._widths.items(), strict=True)
                )
                .rstrip()
            )
