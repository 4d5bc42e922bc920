"""The contents of a page: sections as data, which the page's template renders."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Figure = Mapping[str, Any]
"""A plotly figure: `data` and `layout`. Colors may be names of the page's, such as `--gpu`."""


class Section(Protocol):
    """A section; the template's block with the name of its kind renders it."""

    @property
    def kind(self) -> str:
        """The name of the block."""

    @property
    def title(self) -> str:
        """The heading; empty for none."""


@dataclass(frozen=True)
class Facts:
    """The most important figures: (name, value) each."""

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

    A `folded` table shows its rows on demand.
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
    """A picture as the bytes of a file (`format`: png, jpeg, …), and its caption."""

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
    """A node of a drawing: its center, its size, and its key on the page.

    `key` is its key in the graph's `details`. `place` is where it runs; `heat` has a number from 0
    to 1 for each further coloring that has a value for it. `chips` are small boxes in it.
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
    """A connection of a drawing: a path of SVG, and a description of its tensors."""

    path: str
    text: str


@dataclass(frozen=True)
class Heat:
    """A coloring: its key in `Box.heat`, and the ends of its scale."""

    key: str
    title: str
    low: str
    high: str


@dataclass(frozen=True)
class Drawing:
    """An interactive graph: it can be moved and enlarged, and shows the details of a selected node.

    `legend` has a color (a place) and a name each. `details` maps the keys of the boxes to their
    contents: headings with rows of (name, value).
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
    """Everything that a tool reports. `verdict` is the most important sentence."""

    tool: str
    subject: str
    verdict: str
    sections: Sequence[Section]
