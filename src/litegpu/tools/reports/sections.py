"""What a page is made of: sections as data, which the page's template renders."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Figure = Mapping[str, Any]
"""A figure of plotly: `data` and `layout`. Colours may be names of the page's, such as `--gpu`."""


class Section(Protocol):
    """What the template shows: the block of its name draws it."""

    @property
    def kind(self) -> str:
        """The name of the block."""

    @property
    def title(self) -> str:
        """The heading; empty for none."""


@dataclass(frozen=True)
class Facts:
    """Figures that one sees first: (name, value) each."""

    title: str
    items: Sequence[tuple[str, str]]
    note: str = ""
    kind: str = "facts"


@dataclass(frozen=True)
class Text:
    """Paragraphs, numbered if there are several that are `listed`."""

    title: str
    paragraphs: Sequence[str]
    listed: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Table:
    """Rows of text. A '>' before a heading aligns the column right, as on the console.

    A table that is `folded` shows its rows when one asks for them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Chart:
    """A figure and its caption; two `half` figures share a row."""

    title: str
    figure: Figure
    note: str = ""
    half: bool = False
    kind: str = "chart"


@dataclass(frozen=True)
class Picture:
    """A picture as the bytes of a file (`format`: png, jpeg, …), and what to say below it."""

    title: str
    content: bytes
    caption: str = ""
    format: str = "png"

    @property
    def address(self) -> str:
        """The picture as a data URL."""
        return f"data:image/{self.format};base64,{base64.b64encode(self.content).decode()}"


@dataclass(frozen=True)
class Gallery:
    """Images in a row."""

    title: str
    pictures: Sequence[Picture]
    note: str = ""
    kind: str = "gallery"


@dataclass(frozen=True)
class Box:
    """A node of a drawing: its middle, its size, and how the page knows it.

    `key` is its place in the graph's `details`. `place` says where it runs; `heat` has a number
    from 0 to 1 for each further way of colouring that knows it. `chips` are small boxes in it.
    """

    key: str
    x: float
    y: float
    width: float
    height: float
    label: str
    text: str
    place: str
    heat: Mapping[str, float]
    chips: Sequence[Box] = ()


@dataclass(frozen=True)
class Line:
    """A connection of a drawing: a path of SVG, and what flows there."""

    path: str
    text: str


@dataclass(frozen=True)
class Heat:
    """A way of colouring: its key in `Box.heat`, and its scale's ends."""

    key: str
    title: str
    low: str
    high: str


@dataclass(frozen=True)
class Drawing:
    """A graph that can be moved, enlarged and asked.

    `legend` has a colour (a place) and a name each. `details` has, by the keys of the boxes, what
    is shown of a node that is chosen: headings with rows of (name, value).
    """

    title: str
    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]
    legend: Sequence[tuple[str, str]]
    heats: Sequence[Heat]
    details: Mapping[str, Any]
    note: str = ""
    kind: str = "drawing"


@dataclass(frozen=True)
class Page:
    """All that a tool has to say. `verdict` is the sentence that matters most."""

    tool: str
    subject: str
    verdict: str
    sections: Sequence[Section]
