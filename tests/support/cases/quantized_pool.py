"""Cases of pools of quantized tensors, equal to the CPU in every bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cases.base import EXACT, LARGE, SMALL, Case, Pair, Shape, Sheet
from cases.quantized import ORDINARY, POWER, Stored, quantization


@dataclass(frozen=True, kw_only=True)
class QuantizedPool(Case):
    """AVERAGE_POOL_2D or MAX_POOL_2D; `kind` see cases.quantized."""

    tolerance: ClassVar[float] = EXACT

    op: str = "AVERAGE_POOL_2D"
    dtype: str = "int8"
    kind: str = ORDINARY
    image: Shape = (2, 6, 5, 5)
    kernel: Pair = (2, 2)
    stride: Pair = (1, 1)
    padding: str = "SAME"
    activation: str = "NONE"
    pads: tuple[Pair, Pair] | None = None
    """Zeros that a PAD puts around H and W before the pool."""

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        params = quantization(sheet.random, self.dtype, self.kind, 3.0)
        options = {
            "padding": self.padding,
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "filter_height": self.kernel[0],
            "filter_width": self.kernel[1],
            "fused_activation_function": self.activation,
        }
        x = sheet.input(self.image, Stored(dtype=self.dtype), params)
        if self.pads:
            pads = sheet.constant(((0, 0), *self.pads, (0, 0)), "int32")
            x = sheet.op("PAD", [x, pads], None, 2, self.dtype, params)
        version = {"int8": 2, "uint8": 1, "int16": 3}[self.dtype]
        sheet.output(sheet.op(self.op, [x], options, version, self.dtype, params))


def _cases(**fields: Any) -> Iterator[QuantizedPool]:
    """Yield a case for each operation and each type of bytes."""
    for op in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        for dtype in ("int8", "uint8"):
            yield QuantizedPool(op=op, dtype=dtype, **fields)


CASES = [
    *_cases(),
    *_cases(image=(1, 5, 4, 1), kernel=(3, 2), stride=(2, 1), padding="VALID", kind=POWER),
    *_cases(image=(1, 3, 3, 33), kernel=(5, 5), activation="RELU6"),
    *_cases(image=(3, 4, 5, 8), kernel=(3, 3), stride=(2, 2), activation="RELU"),
    *_cases(image=(1, 4, 4, 6), kernel=(1, 1), stride=(2, 2), activation="RELU_N1_TO_1"),
    # Neighbours that a work item makes, the last ones beyond the edge or not
    *(
        case
        for padding in ("SAME", "VALID")
        for case in _cases(
            image=(2, 9, 14, 5), kernel=(3, 3), stride=(2, 2), padding=padding, items=SMALL
        )
    ),
    *_cases(image=(1, 4, 13, 8), kernel=(2, 5), kind=POWER, items=SMALL),
    *_cases(pads=((3, 2), (6, 5)), kernel=(3, 2), padding="VALID", kind=POWER, items=SMALL),
    # Large windows, by one work item and shared out over a work group
    *(
        case
        for items in (SMALL, LARGE)
        for case in _cases(image=(1, 13, 12, 6), kernel=(13, 12), padding="VALID", items=items)
    ),
    *_cases(image=(2, 12, 13, 5), kernel=(12, 11), stride=(5, 4), items=LARGE),
    # Zeros that count
    *_cases(pads=((3, 0), (1, 4)), kernel=(3, 2), padding="VALID", kind=POWER),
    QuantizedPool(dtype="int16", image=(2, 5, 6, 7), kernel=(3, 3), activation="RELU6"),
    QuantizedPool(op="MAX_POOL_2D", dtype="int16", stride=(2, 2)),
]
