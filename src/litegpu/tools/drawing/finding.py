"""The interface of results of a model, and the input for reading them."""

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
    """A model's result for one picture."""

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return the picture with the result on or next to it, scaled to its size."""
        ...

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return headings, as `print_table` takes them, and rows."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON, with coordinates in pixels of the picture."""
        ...

    def brief(self) -> str:
        """Return the result in a few words."""
        ...


@dataclass(frozen=True)
class Scene:
    """Everything besides the outputs that is needed to interpret a result."""

    facts: ModelFacts
    frame: Frame
    named: NamedLabels | None
    """The labels file given by the user."""
    content: bytes
    """The model's file, which may hold labels."""
    min_score: float
    memory: dict[tuple[str, int], Any] = field(default_factory=dict)
    """Results for one picture that are valid for later pictures, too."""

    def remembered(self, what: str, number: int, find: Callable[[], Value]) -> Value:
        """Return the result of `find` for the first picture: for example, names are read once."""
        if (what, number) not in self.memory:
            self.memory[what, number] = find()
        found: Value = self.memory[what, number]
        return found


class Evidence(NamedTuple):
    """The reason why a model may be for a task."""

    certain: bool
    why: str


Outputs = Sequence[Output]
