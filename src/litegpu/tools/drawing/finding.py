"""What every kind of answer can do, and what reading one takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from litegpu.pictures.framing import Frame
from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.labels import NamedLabels

if TYPE_CHECKING:
    from PIL import Image


Value = TypeVar("Value")


class Finding(Protocol):
    """What a model says about one picture."""

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return the image with the result on or next to it; the size follows from its size."""
        ...

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return headings, as `print_table` takes them, and rows."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the answer for JSON, with places in pixels of the picture."""
        ...

    def brief(self) -> str:
        """Return the answer in a few words."""
        ...


@dataclass(frozen=True)
class Scene:
    """What the interpretation of a result requires, in addition to the outputs."""

    facts: ModelFacts
    frame: Frame
    named: NamedLabels | None
    """The labels file that the user named."""
    content: bytes
    """The model's file, which may hold labels."""
    min_score: float
    memory: dict[tuple[str, int], Any] = field(default_factory=dict)
    """What was found out for one picture and holds for the next, too."""

    def remembered(self, what: str, number: int, find: Callable[[], Value]) -> Value:
        """Return what `find` returned for the first picture: names are read once."""
        if (what, number) not in self.memory:
            self.memory[what, number] = find()
        found: Value = self.memory[what, number]
        return found


class Evidence(NamedTuple):
    """Why a model may be for a task."""

    certain: bool
    why: str


Outputs = Sequence[Output]
