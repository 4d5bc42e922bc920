"""Cases of CONCATENATION."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import EXACT, STEPS, Case, Shape, Sheet
from cases.conv_2d import ACTIVATIONS


@dataclass(frozen=True, kw_only=True)
class Concat(Case):
    """Joins inputs of the given shapes.

    `order` says which of them, and in which order (empty: each once); those numbered in
    `constants` are constants.
    """

    tolerance: ClassVar[float] = EXACT

    shapes: tuple[Shape, ...] = ()
    axis: int = 3
    order: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()

    def write(self, sheet: Sheet) -> None:
        """Inputs and constants, one concatenation, one output."""
        sources = [
            sheet.weights(shape, STEPS) if i in self.constants else sheet.input(shape)
            for i, shape in enumerate(self.shapes)
        ]
        inputs = [sources[i] for i in self.order or range(len(sources))]
        sheet.output(sheet.op("CONCATENATION", inputs, {"axis": self.axis}))


@dataclass(frozen=True, kw_only=True)
class ActivatedConcat(Case):
    """A concatenation with a fused activation, which only the file format knows."""

    activation: str

    def write(self, sheet: Sheet) -> None:
        """Two inputs, one concatenation, one output."""
        inputs = [sheet.input((1, 3, 2, 4)), sheet.input((1, 3, 2, 3))]
        sheet.output(sheet.fused("CONCATENATION", inputs, self.activation, {"axis": 3}))


def _channels(*counts: int) -> tuple[Shape, ...]:
    return tuple((1, 3, 2, count) for count in counts)


CASES: tuple[Case, ...] = (
    # Channels: aligned, aligned but for the last, and not
    *(
        Concat(shapes=_channels(*counts))
        for counts in (
            (4, 8),
            (8, 16, 4),
            (8, 3),
            (4, 4, 5),
            (3, 4),
            (1, 1, 1),
            (5, 1, 2, 7),
            (6, 2, 9, 4, 3),
            (12, 6, 8),
        )
    ),
    Concat(shapes=((3, 2, 3, 8), (3, 2, 3, 4))),
    Concat(shapes=((3, 2, 3, 7), (3, 2, 3, 2))),
    Concat(shapes=_channels(8, 3), axis=-1),
    Concat(shapes=_channels(6)),
    # The other axes, with batches
    *(
        Concat(shapes=((2, 3, 2, channels), other), axis=axis)
        for channels in (5, 8)
        for axis, other in (
            (0, (3, 3, 2, channels)),
            (1, (2, 1, 2, channels)),
            (2, (2, 3, 4, channels)),
            (-2, (2, 3, 1, channels)),
        )
    ),
    # Other ranks
    Concat(shapes=((3,), (8,)), axis=0),
    Concat(shapes=((3, 4), (3, 8)), axis=1),
    Concat(shapes=((3, 5), (2, 5)), axis=-2),
    Concat(shapes=((2, 3, 4), (2, 5, 4)), axis=1),
    Concat(shapes=((2, 3, 4), (2, 3, 3), (2, 3, 5)), axis=-1),
    *(Concat(shapes=((2, 3, 2, 2, 3, 5),) * 2, axis=axis) for axis in (0, 2, 4, 5)),
    # The same value twice, constants
    Concat(shapes=_channels(4), order=(0, 0)),
    Concat(shapes=_channels(3, 5), order=(0, 1, 0)),
    # More parts than one kernel has buffers
    Concat(shapes=_channels(1, 2, 3, 7), order=(0, 1, 2, 0, 3, 1, 1) * 12),
    Concat(shapes=((2, 3, 2, 4),), order=(0, 0), axis=0),
    Concat(shapes=_channels(4, 8), constants=(0,)),
    Concat(shapes=_channels(3, 2, 5), constants=(1,)),
    Concat(shapes=((2, 3, 2, 6), (1, 3, 2, 6)), axis=0, constants=(1,)),
    *(ActivatedConcat(activation=activation) for activation in ACTIVATIONS[1:]),
)
