"""Cases of AVERAGE_POOL_2D and MAX_POOL_2D."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import CLOSE, LARGE, SMALL, Case, Pair, Range, Shape, Sheet
from cases.conv_2d import ACTIVATIONS

_POSITIVE, _NEGATIVE = Range(0.5, 2.0), Range(-2.0, -0.5)


@dataclass(frozen=True, kw_only=True)
class AveragePool(Case):
    """An average over a window."""

    tolerance: ClassVar[float] = CLOSE
    op: ClassVar[str] = "AVERAGE_POOL_2D"

    image: Shape = (2, 9, 7, 5)
    kernel: Pair = (2, 2)
    stride: Pair = (1, 1)
    padding: str = "SAME"
    activation: str = "NONE"
    values: Range = _POSITIVE
    pads: tuple[Pair, Pair] | None = None
    """Zeros that a PAD puts around H and W before the pool."""

    def write(self, sheet: Sheet) -> None:
        """One input, one pool (perhaps of padding), one output."""
        options = {
            "padding": self.padding,
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "filter_height": self.kernel[0],
            "filter_width": self.kernel[1],
        }
        image = sheet.input(self.image, self.values)
        if self.pads:
            pads = sheet.constant(((0, 0), *self.pads, (0, 0)), "int32")
            image = sheet.op("PAD", [image, pads])
        sheet.output(sheet.fused(self.op, [image], self.activation, options))


@dataclass(frozen=True, kw_only=True)
class MaxPool(AveragePool):
    """A maximum over a window; all values negative, so that a zero from nowhere would win."""

    op: ClassVar[str] = "MAX_POOL_2D"
    values: Range = _NEGATIVE


@dataclass(frozen=True, kw_only=True)
class L2Pool(AveragePool):
    """The root of the mean of squares in a window."""

    op: ClassVar[str] = "L2_POOL_2D"


@dataclass(frozen=True, kw_only=True)
class LocalResponse(Case):
    """Elements scaled down by those beside them among the channels."""

    shape: Shape = (2, 3, 2, 7)
    radius: int = 2
    bias: float = 1.0
    alpha: float = 0.5
    beta: float = 0.75

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        options = {name: getattr(self, name) for name in ("radius", "bias", "alpha", "beta")}
        sheet.output(sheet.op("LOCAL_RESPONSE_NORMALIZATION", [sheet.input(self.shape)], options))


def _cases(pool: type[AveragePool]) -> tuple[Case, ...]:
    return (
        *(pool(image=(1, 5, 4, c)) for c in range(1, 10)),
        *(
            pool(kernel=(3, 2), stride=stride, padding=padding)
            for padding in ("SAME", "VALID")
            for stride in ((1, 1), (2, 1), (1, 2), (3, 3))
        ),
        pool(image=(1, 4, 4, 6), kernel=(1, 1), stride=(2, 2)),
        pool(image=(1, 3, 3, 6), kernel=(5, 5)),
        pool(image=(3, 5, 3, 12), kernel=(5, 3), padding="VALID"),
        *(
            pool(image=(1, 4, 4, 3), activation=activation, values=Range(-8.0, 8.0))
            for activation in ACTIVATIONS[1:]
        ),
        # Large windows, by one work item and shared out over a work group
        *(
            pool(image=(1, 13, 12, 6), kernel=(13, 12), padding="VALID", items=items)
            for items in (SMALL, LARGE)
        ),
        pool(image=(2, 12, 13, 5), kernel=(12, 11), stride=(5, 4), items=LARGE),
        # Zeros that count, some windows of nothing else among them
        pool(pads=((1, 1), (1, 1)), kernel=(3, 3), stride=(2, 2), padding="VALID"),
        pool(pads=((3, 0), (0, 4)), kernel=(2, 3), padding="VALID", activation="RELU"),
        pool(pads=((1, 2), (2, 1)), kernel=(3, 3), stride=(2, 2)),
        pool(
            image=(1, 9, 9, 6), pads=((3, 3), (3, 3)), kernel=(15, 15), padding="VALID", items=LARGE
        ),
        pool(image=(1, 7, 7, 9), kernel=(13, 13), items=LARGE, activation="RELU_N1_TO_1"),
    )


CASES: tuple[Case, ...] = (
    *_cases(AveragePool),
    *_cases(MaxPool),
    *(
        L2Pool(kernel=(3, 2), stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for stride in ((1, 1), (2, 1))
    ),
    *(L2Pool(image=(1, 5, 4, c), activation="RELU6") for c in (1, 8)),
    *(LocalResponse(radius=radius) for radius in (0, 1, 2, 9)),
    *(LocalResponse(shape=(1, 2, 3, c)) for c in (1, 4, 16)),
    LocalResponse(bias=2.0, alpha=0.25, beta=1.0),
)
