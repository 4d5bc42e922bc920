"""Cases of DENSIFY: sparse constants, in every order and format, that other operations read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cases.base import ANY, Case, Pair, Shape, Sheet
from sparse_tensors import DENSE, SPARSE, sparse_constant


@dataclass(frozen=True, kw_only=True)
class Densify(Case):
    """A sparse constant that is added to an input.

    `order` and `formats` are those of the levels; `blocks` pairs a dimension with the size that it
    is cut into.
    """

    shape: Shape = (6, 8)
    order: Shape = (0, 1)
    formats: Shape = (DENSE, SPARSE)
    blocks: tuple[Pair, ...] = ()
    density: float = 0.3
    """How much of the constant is not zero."""
    half: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one sparse constant, one sum."""
        source = sheet.input(self.shape)
        random = np.random.default_rng(1)
        mask = random.random(self.shape) < self.density
        mask.flat[0] = True  # a constant without elements is none to the runtime
        data = ANY.draw(self.shape, random) * mask
        data = data.astype(np.float16 if self.half else np.float32)
        sheet.tensors += 1
        sparse = sparse_constant(sheet.writer, data, self.order, self.formats, dict(self.blocks))
        dense = sheet.op("DENSIFY", [sparse], dtype=data.dtype.name)
        if self.half:
            dense = sheet.op("DEQUANTIZE", [dense], version=2)
        sheet.output(sheet.op("ADD", [source, dense]))


CASES: tuple[Case, ...] = (
    *(
        Densify(order=order, formats=formats)
        for order in ((0, 1), (1, 0))
        for formats in ((DENSE, DENSE), (DENSE, SPARSE), (SPARSE, DENSE), (SPARSE, SPARSE))
    ),
    *(Densify(density=density) for density in (0.02, 1.0)),
    Densify(shape=(5,), order=(0,), formats=(SPARSE,)),
    Densify(shape=(4, 8), order=(0, 1, 2), formats=(DENSE, SPARSE, DENSE), blocks=((1, 4),)),
    Densify(
        shape=(4, 8),
        order=(1, 0, 3, 2),
        formats=(SPARSE, SPARSE, DENSE, DENSE),
        blocks=((0, 2), (1, 4)),
    ),
    Densify(
        shape=(4, 8),
        order=(0, 1, 2, 3),
        formats=(DENSE, SPARSE, DENSE, DENSE),
        blocks=((0, 2), (1, 2)),
    ),
    Densify(half=True),
    Densify(shape=(3, 2, 2, 5), order=(3, 0, 2, 1), formats=(SPARSE, DENSE, SPARSE, DENSE)),
)
