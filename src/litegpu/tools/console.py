"""Tables, status lines and progress bars, drawn by rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

from litegpu.errors import missing_dependency

try:
    from rich import box
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise missing_dependency("rich", "tools", "The command line") from error

Item = TypeVar("Item")

# A pipe has no width of its own; tables in files and logs should not wrap at 80 columns.
PIPE_WIDTH = 120


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a blank line and a table; columns whose heading starts with '>' are aligned right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(
            column.lstrip(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = _console()
    with console.capture() as capture:
        console.print(table)
    print("\n" + "\n".join(line.rstrip() for line in capture.get().splitlines()))


def note(message: str) -> None:
    """Say on stderr what is going on, after all that stdout was given; results go to stdout."""
    sys.stdout.flush()
    print(message, file=sys.stderr)


def progress(items: Sequence[Item], label: str) -> Iterable[Item]:
    """Yield `items` under a progress bar on stderr, which is drawn only on a terminal."""
    console = Console(stderr=True)
    return track(
        items, description=label, console=console, transient=True, disable=not console.is_terminal
    )


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
