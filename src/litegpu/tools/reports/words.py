"""Formats figures and names as text for pages."""

from __future__ import annotations

import html
from collections.abc import Sequence

from litegpu.wording import printable

_SHORT = 24


def us(seconds: float) -> str:
    """Convert seconds to a text in microseconds with the significant digits."""
    value = seconds * 1e6
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """Return a fraction as a percentage; empty if unknown."""
    return "" if share is None else f"{share:.0%}"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text; unknown sizes are question marks."""
    return "×".join(str(size) if size >= 0 else "?" for size in shape) or "scalar"


def short(name: str, most: int = _SHORT) -> str:
    """Return an untrusted name as printable text, truncated if the name is long."""
    return printable(name, most)


def for_plotly(text: str) -> str:
    """Escape text for plotly's labels, which accept some HTML."""
    return html.escape(printable(text), quote=False)
