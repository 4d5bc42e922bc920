"""Cases of convolutions whose dilation is written as blocks of pixels in batches of their own."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import Case, Pair, Range, Shape, Sheet
from litegpu.zoo.writer import TensorRef

_NONE: tuple[Pair, Pair] = ((0, 0), (0, 0))


@dataclass(frozen=True, kw_only=True)
class BlockedConvolution(Case):
    """SPACE_TO_BATCH_ND, a convolution with `outputs` (0: depthwise), BATCH_TO_SPACE_ND.

    Blocks with one size cut sequences [N, length, C], which the convolution sees as images; those
    are `upright` where the length is H.
    """

    shape: Shape = (1, 8, 6, 5)
    blocks: tuple[int, ...] = (2, 2)
    pads: tuple[Pair, ...] = ((2, 2), (2, 2))
    crops: tuple[Pair, ...] = _NONE
    kernel: Pair = (3, 3)
    outputs: int = 7
    padding: str = "VALID"
    dilation: int = 1
    activation: str = "NONE"
    scaled: bool = False
    upright: bool = False

    def write(self, sheet: Sheet) -> None:
        """Write the three operations, and what may stand between them."""
        blocks = sheet.constant(self.blocks, "int32")
        cut = [sheet.input(self.shape), blocks, sheet.constant(self.pads, "int32")]
        value = sheet.op("SPACE_TO_BATCH_ND", cut)
        sequences = len(self.blocks) == 1
        if sequences:
            position = sheet.constant(2 if self.upright else 1, "int32")
            value = sheet.op("EXPAND_DIMS", [value, position])
        value = self._convolved(sheet, value)
        if sequences:
            value = sheet.op("SQUEEZE", [value], {"squeeze_dims": [2 if self.upright else 1]})
        if self.scaled:
            factors = sheet.weights((self.outputs or self.shape[-1],), Range(0.5, 1.5))
            value = sheet.fused("ADD", [sheet.op("MUL", [value, factors]), factors], "RELU6")
        crops = sheet.constant(self.crops[: len(self.blocks)], "int32")
        sheet.output(sheet.op("BATCH_TO_SPACE_ND", [value, blocks, crops]))

    def _convolved(self, sheet: Sheet, value: TensorRef) -> TensorRef:
        depth = self.shape[-1]
        spread = Range(-0.5, 0.5)
        options = {"padding": self.padding, "stride_h": 1, "stride_w": 1}
        options |= {"dilation_h_factor": self.dilation, "dilation_w_factor": self.dilation}
        if self.outputs:
            name, shape = "CONV_2D", (self.outputs, *self.kernel, depth)
        else:
            name, shape = "DEPTHWISE_CONV_2D", (1, *self.kernel, depth)
            options["depth_multiplier"] = 1
        bias = sheet.weights((self.outputs or depth,), spread)
        inputs = [value, sheet.weights(shape, spread), bias]
        return sheet.fused(name, inputs, self.activation, options, 2 if self.dilation > 1 else 1)


def _case(shape: Shape, **fields: object) -> BlockedConvolution:
    return BlockedConvolution(shape=shape, **fields)  # type: ignore[arg-type]


CASES: tuple[Case, ...] = (
    *(_case((n, 8, 6, c), outputs=o) for n, c, o in ((1, 1, 3), (2, 8, 8), (3, 9, 1), (1, 40, 24))),
    *(_case((n, 8, 6, c), outputs=0) for n, c in ((1, 1), (2, 8), (3, 7))),
    _case((1, 9, 7, 4), blocks=(4, 4), pads=((4, 7), (4, 5)), crops=((0, 3), (0, 1))),
    _case(
        (2, 7, 5, 3), blocks=(2, 3), pads=((2, 3), (3, 4)), crops=((0, 1), (1, 0)), kernel=(2, 3)
    ),
    _case((1, 7, 6, 6), blocks=(2, 1), pads=((3, 2), (1, 1)), outputs=0),
    _case((1, 6, 8, 5), blocks=(1, 2), pads=((0, 0), (0, 0)), kernel=(1, 3)),
    _case((1, 8, 8, 5), pads=_NONE, crops=((2, 1), (1, 2))),
    _case((1, 8, 8, 5), pads=_NONE, crops=((3, 1), (1, 2)), outputs=0, padding="SAME"),
    _case((1, 7, 6, 5), pads=((0, 1), (1, 1)), padding="SAME", crops=((0, 1), (1, 1))),
    _case((2, 12, 10, 5), pads=((4, 4), (4, 4)), dilation=2, activation="RELU"),
    _case((1, 8, 6, 5), activation="RELU6", scaled=True),
    _case(
        (1, 3, 3, 5), blocks=(1, 2), pads=((0, 0), (2, 1)), crops=((0, 0), (2, 0)), kernel=(1, 1)
    ),
    _case((1, 8, 6, 5), outputs=0, scaled=True),
    *(
        _case((n, 11, c), blocks=(d,), pads=((2 * d, (-11) % d),), kernel=(1, 3), scaled=scaled)
        for n, c, d, scaled in ((1, 5, 2, False), (2, 8, 4, True), (3, 3, 8, False))
    ),
    _case((2, 12, 5), blocks=(3,), pads=((3, 3),), kernel=(3, 1), upright=True, outputs=0),
)
