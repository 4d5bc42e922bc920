"""Generates HTML tables for notebooks in the notebook's style, without any package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from litegpu.wording import printable

_LONGEST = 2000
"""Maximum number of characters of a table cell."""


def paragraph(text: str, bold: bool = False) -> str:
    """Return a paragraph of HTML with a line of text."""
    shown = _text(text)
    return f"<p>{f'<b>{shown}</b>' if bold else shown}</p>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; an empty text if there are no rows.

    A '>' before a heading aligns the column to the right.
    """
    sides = ["right" if heading.startswith(">") else "left" for heading in headings]
    # Styles are set on the cells, because notebooks style tables.
    lines = [_row("td", row, sides) for row in rows]
    if not lines:
        return ""
    head = _row("th", [heading.lstrip(">") for heading in headings], sides)
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def folded(summary: str, content: str) -> str:
    """Return a collapsed HTML section; an empty text if the content is empty."""
    if not content:
        return ""
    return f"<details><summary>{_text(summary)}</summary>{content}</details>"


def listed(items: Iterable[str]) -> str:
    """Return a numbered HTML list; an empty text if there are no items."""
    lines = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<ol>{lines}</ol>" if lines else ""


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    shown = (
        f'<{tag} style="text-align: {side}">{_text(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"


def _text(text: str) -> str:
    """Return untrusted text, escaped and shortened for HTML."""
    return escape(printable(text, _LONGEST))
