"""Write the pages of docs/ that follow from the code: docs/ops.md and docs/environment.md.

Usage: write_docs.py. Run it in the environment that litegpu is installed in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from litegpu.config import VARIABLES
from litegpu.ops import all_ops

DOCS = Path(__file__).parents[1] / "docs"
_NOTE = "<!-- Written by scripts/write_docs.py from the code: change it there, not here. -->"


def ops_page() -> str:
    """Return the table of operations."""
    rows = [
        (op.name, str(op.max_version), inspect.getdoc(type(op)) or "")
        for op in all_ops()
        if not op.internal
    ]
    return f"""{_NOTE}

# Operations

The {len(rows)} operations that litegpu runs, up to the version given. Tensors that are computed
have at most 5 dimensions and hold float32; those of integers and bools are taken as
[decision 4](decisions/0004-element-types.md) says. `litegpu check MODEL` says of each node of a
model whether it runs on the GPU and, if not, why. SHAPE, RANK, FILL, RANGE and operations on
constants are worked out beforehand and stand in nobody's way.

{_table(("operation", "version", "what is handled"), rows)}"""


def environment_page() -> str:
    """Return the table of environment variables."""
    return f"""{_NOTE}

# Environment variables

What an option says goes before what the environment says.

{_table(("variable", "meaning"), ((f"`{name}`", text) for name, text in VARIABLES.items()))}"""


PAGES: Mapping[str, Callable[[], str]] = {
    "ops.md": ops_page,
    "environment.md": environment_page,
}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
