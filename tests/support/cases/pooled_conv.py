"""Cases of convolutions of images with few channels, followed by a max pool."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import Case, Pair, Shape, Sheet, Windowed


@dataclass(frozen=True, kw_only=True)
class PooledConv(Windowed):
    """A convolution and a pool, with what one kernel may do of both inside of the partition."""

    image: Shape = (1, 13, 21, 3)
    filters: int = 8
    kernel: Pair = (5, 5)
    activation: str = "NONE"
    bias: str = "constant"
    pool: Pair = (3, 3)
    by: Pair = (2, 2)
    pool_padding: str = "SAME"
    zeros: int = 0
    """How many of them a PAD puts around the convolution's result."""
    after: str = "NONE"
    """The pool's own activation."""

    def write(self, sheet: Sheet) -> None:
        """One input, a convolution, a pool and one that changes nothing, one output."""
        image = sheet.input(self.image)
        shape = (self.filters, *self.kernel, self.image[3])
        weights = sheet.operands(shape, "constant", self.bias)
        middle = sheet.fused("CONV_2D", [image, *weights], self.activation, self.window())
        if self.zeros:
            around = (self.zeros, self.zeros)
            middle = sheet.op(
                "PAD", [middle, sheet.constant(((0, 0), around, around, (0, 0)), "int32")]
            )
        options = {
            "padding": self.pool_padding,
            "stride_h": self.by[0],
            "stride_w": self.by[1],
            "filter_height": self.pool[0],
            "filter_width": self.pool[1],
        }
        result = sheet.fused("MAX_POOL_2D", [middle], self.after, options)
        single = {"stride_h": 1, "stride_w": 1, "filter_height": 1, "filter_width": 1}
        sheet.output(
            sheet.fused("AVERAGE_POOL_2D", [result], "NONE", {"padding": "VALID", **single})
        )


CASES: tuple[Case, ...] = (
    # Windows of the pool
    PooledConv(activation="RELU"),
    PooledConv(pool=(2, 2), pool_padding="VALID"),
    PooledConv(image=(2, 13, 37, 2), filters=9, by=(1, 1), padding="VALID"),
    PooledConv(image=(2, 12, 35, 3), filters=17, pool=(2, 3), by=(3, 2), activation="RELU6"),
    PooledConv(image=(3, 11, 40, 4), filters=33, pool=(3, 2), by=(2, 1), pool_padding="VALID"),
    PooledConv(image=(1, 13, 41, 1), pool=(1, 2), by=(3, 3), pool_padding="VALID"),
    PooledConv(image=(1, 17, 38, 3), filters=70, pool=(5, 9), by=(2, 3), activation="TANH"),
    PooledConv(image=(1, 9, 47, 1), filters=20, kernel=(2, 9), pool=(4, 2), by=(1, 1)),
    # The convolution's
    PooledConv(image=(2, 38, 44, 3), filters=20, kernel=(7, 7), stride=(2, 2), activation="RELU"),
    PooledConv(image=(1, 33, 36, 4), kernel=(3, 3), stride=(2, 2), bias="", pool=(2, 2)),
    PooledConv(image=(1, 19, 40, 2), kernel=(3, 4), stride=(1, 3), dilation=(1, 1), by=(1, 2)),
    PooledConv(image=(1, 25, 24, 1), kernel=(4, 5), dilation=(2, 1), pool=(2, 2)),
    # Zeros that count, and what follows
    PooledConv(zeros=1, pool_padding="VALID", filters=12),
    PooledConv(zeros=1, pool_padding="VALID", activation="RELU", after="RELU_N1_TO_1"),
)
