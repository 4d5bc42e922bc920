"""Formats figures and untrusted words as readable text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

_SHOWN = 6
_SPACE = "\N{NO-BREAK SPACE}"
_LONGEST = 200
"""Maximum number of characters of an untrusted line that are shown."""


def printable(text: str, longest: int = _LONGEST) -> str:
    """Return a line of text without characters that are unsafe to show; a long line is truncated.

    The names in a model are untrusted: Python's escapes replace control characters, terminal escape
    sequences, line ends and characters that change the writing direction.
    """
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return "".join(
        each if each.isprintable() or each == _SPACE else each.encode("unicode_escape").decode()
        for each in text
    )


def shown_size(nbytes: float) -> str:
    """Return a number of bytes as text: ``1.5 MiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def shown_time(seconds: float) -> str:
    """Return seconds as text with two significant digits: ``38 us``, ``1.2 ms``."""
    if abs(seconds) >= 1:
        return f"{seconds:.1f} s"
    for factor, unit in ((1e3, "ms"), (1e6, "us")):
        if abs(seconds) * factor >= 1:
            scaled = seconds * factor
            return f"{scaled:.1f} {unit}" if abs(scaled) < 10 else f"{scaled:.0f} {unit}"
    return "less than 1 us"


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Return text wrapped at `width` where possible; all lines but the first are indented."""
    return textwrap.fill(
        text,
        max(width, 2 * len(indent)),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def about(seconds: float) -> str:
    """Return an estimated time as text: ``about 38 us``, or ``less than 1 us``."""
    return f"about {shown_time(seconds)}" if counts(seconds) else shown_time(seconds)


def counts(seconds: float) -> bool:
    """Return whether an estimated time is large enough to be shown."""
    return seconds >= 1e-6


def counted(number: int, thing: str) -> str:
    """Return a number of things as text: ``1 node``, ``3 nodes``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def shown_nodes(nodes: Sequence[int]) -> str:
    """Return the numbers of nodes as text: ``nodes 1, 2, 3, 4, 5, 6 and 9 more``."""
    listed = ", ".join(map(str, nodes[:_SHOWN]))
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"node{'s' * (len(nodes) > 1)} {listed}{more}"


def shown_names(names: Sequence[str]) -> str:
    """Return the names of tensors as text: ``'a', 'b' and 7 more``."""
    listed = ", ".join(map(repr, names[:_SHOWN]))
    return f"{listed} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else listed


def shown_ops(names: Iterable[str]) -> str:
    """Return the names of operations with their numbers, the most frequent first."""
    counts = Counter(names).most_common()
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts)
