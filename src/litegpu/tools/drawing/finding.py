"""The interface of a model's results, and the data needed to interpret outputs."""

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
        """Return the picture with the result drawn on or next to it."""
        ...

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return the headings and rows of a table for `print_table`."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON, with coordinates in pixels of the picture."""
        ...

    def brief(self) -> str:
        """Return the result in a few words."""
        ...


@dataclass(frozen=True)
class Scene:
    """The data, in addition to the outputs, that are needed to interpret a result."""

    facts: ModelFacts
    frame: Frame
    named: NamedLabels | None
    """The user's labels file; None without one."""
    content: bytes
    """The model's file, which may contain labels."""
    min_score: float
    memory: dict[tuple[str, int], Any] = field(default_factory=dict)
    """Cached results that are valid for all pictures."""

    def remembered(self, what: str, number: int, find: Callable[[], Value]) -> Value:
        """Return the cached result of `find`, which is called for the first picture only."""
        if (what, number) not in self.memory:
            self.memory[what, number] = find()
        found: Value = self.memory[what, number]
        return found


class Evidence(NamedTuple):
    """The reason why a model may belong to a task."""

    certain: bool
    why: str


Outputs = Sequence[Output]
