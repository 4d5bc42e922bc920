"""The contents of a page: sections as data, which the HTML template renders."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Figure = Mapping[str, Any]
"""A plotly figure: `data` and `layout`.

Colors may be CSS variables of the page, such as `--gpu`.
"""


class Section(Protocol):
    """A section of a page; the template block named `kind` renders the section."""

    @property
    def kind(self) -> str:
        """The name of the template block."""

    @property
    def title(self) -> str:
        """The heading of the section; may be empty."""


@dataclass(frozen=True)
class Facts:
    """A section with the most important figures, each (name, value)."""

    title: str
    items: Sequence[tuple[str, str]]
    note: str = ""
    kind: str = "facts"


@dataclass(frozen=True)
class Text:
    """A section of paragraphs, which are numbered if there are several and `listed` is true."""

    title: str
    paragraphs: Sequence[str]
    listed: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Table:
    """A section with a table. A '>' before a heading aligns the column right, as on the console.

    If `folded`, the table shows its rows only on demand.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Chart:
    """A section with a chart and its caption; two `half` charts share a row."""

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
        """The data URL of the picture."""
        return f"data:image/{self.format};base64,{base64.b64encode(self.content).decode()}"


@dataclass(frozen=True)
class Gallery:
    """A section with images in a row."""

    title: str
    pictures: Sequence[Picture]
    note: str = ""
    kind: str = "gallery"


@dataclass(frozen=True)
class Box:
    """A node of a drawing: center, size, and key on the page.

    `key` is the node's key in the drawing's `details`. `place` is the color class of the processor
    that runs the node. `heat` has a number from 0 to 1 for each coloring with a value for the node.
    `chips` are small boxes inside the box.
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
    """An edge of a drawing: an SVG path, and a description of the tensors."""

    path: str
    text: str


@dataclass(frozen=True)
class Heat:
    """A coloring of nodes: the key in `Box.heat`, and the labels at the ends of the scale."""

    key: str
    title: str
    low: str
    high: str


@dataclass(frozen=True)
class Drawing:
    """An interactive drawing of a graph, with pan, zoom, and details of the selected node.

    `legend` has pairs of a color (a place) and a name. `details` maps the keys of the boxes to
    headings with rows of (name, value).
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
    """A report page of a tool. `verdict` is the most important sentence."""

    tool: str
    subject: str
    verdict: str
    sections: Sequence[Section]
