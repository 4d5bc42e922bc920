"""The spec of a product of two computed matrices, for its implementations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import Storage

Batch = tuple[int, int, int]
"""The batch axes of an operand, outermost first."""


@dataclass(frozen=True, slots=True)
class MatmulAttributes:
    """Which operands are transposed, and the batch shapes [a, b, c] of operands and result."""

    transposed: tuple[bool, bool]
    batches: tuple[Batch, Batch]
    batch: Batch


@dataclass(frozen=True, slots=True)
class MatmulSpec:
    """Products of matrices [rows, depth] and [depth, columns], one for each entry of `batch`.

    `transposed` states which operands are stored transposed. The batch shape of an operand has size
    1 along broadcast axes.
    """

    left: Storage
    right: Storage
    dst: Storage
    transposed: tuple[bool, bool]
    batches: tuple[Batch, Batch]
    batch: Batch

    @property
    def rows(self) -> int:
        """Number of rows of a product matrix."""
        return self.dst.shape[2]

    @property
    def depth(self) -> int:
        """The inner dimension of the product."""
        return self.left.shape[2] if self.transposed[0] else self.left.channels

    @property
    def products(self) -> int:
        return self.dst.shape[0] * self.dst.shape[1]

    @property
    def flops(self) -> int:
        return 2 * self.dst.rows * self.dst.channels * self.depth

    def words(self, blocks: int) -> dict[str, Any]:
        """Return the template variables; a product has `blocks` blocks of rows."""
        count = self.dst.shape[0], self.dst.shape[1]
        return {
            "blocks": blocks,
            "depth": self.depth,
            "transposed": self.transposed,
            "coordinates": [_coordinates(each, self.batch) for each in self.batches],
            "result": dict(zip("ny", digits("b", count), strict=True)),
        }


def digits(number: str, dimensions: Sequence[int]) -> list[str]:
    """Return kernel text of an element's index along each dimension, outermost first.

    The text has no trivial divisions, because NVIDIA's OpenCL compiler crashes on some remainders
    that equal the dividend.

    >>> digits("b", (2, 3)), digits("b", (1, 6)), digits("b", (4, 1, 5))
    (['(b / 3)', '(b % 3)'], ['0', 'b'], ['(b / 5)', '0', '(b % 5)'])
    """
    found = []
    for axis, size in enumerate(dimensions):
        inner, outer = math.prod(dimensions[axis + 1 :]), math.prod(dimensions[:axis])
        text = f"{number} / {inner}" if inner > 1 else number
        text = f"{text} % {size}" if outer > 1 else text
        found.append("0" if size == 1 else text if text == number else f"({text})")
    return found


def _coordinates(own: Batch, batch: Batch) -> tuple[str, str]:
    """Return kernel text of an operand's N and H coordinates, for batch `b` of the result."""
    texts = [text if size > 1 else "0" for text, size in zip(digits("b", batch), own, strict=True)]
    first, second, third = texts
    if first == "0":
        return second, third
    return f"({first} * {own[1]} + {second})", third
