"""Cases of BATCH_MATMUL."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, SMALL, Case, Shape, Sheet


@dataclass(frozen=True, kw_only=True)
class Matmul(Case):
    """A product of `rows` x `depth` and `depth` x `columns` matrices over two batches.

    `constant` is the number of the operand that is one (-1: none). `itself`: the first operand is
    the second one too.
    """

    rows: int = 3
    depth: int = 5
    columns: int = 6
    batch: Shape = (2,)
    other: Shape = (2,)
    adj_x: bool = False
    adj_y: bool = False
    constant: int = -1
    itself: bool = False

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one product, one output."""
        left, right = (self.rows, self.depth), (self.depth, self.columns)
        shapes = (
            (*self.batch, *(left[::-1] if self.adj_x else left)),
            (*self.other, *(right[::-1] if self.adj_y else right)),
        )
        operands = [
            sheet.weights(shape) if i == self.constant else sheet.input(shape)
            for i, shape in enumerate(shapes[: 1 if self.itself else 2])
        ]
        operands *= 2 if self.itself else 1
        options = {"adj_x": self.adj_x, "adj_y": self.adj_y}
        sheet.output(sheet.op("BATCH_MATMUL", operands, options))


_WAYS = tuple((x, y) for x in (False, True) for y in (False, True))

CASES: tuple[Case, ...] = (
    # Sizes, each operand transposed or not
    *(
        Matmul(rows=1 + c % 4, depth=c, columns=10 - c, adj_x=x, adj_y=y)
        for c in range(1, 10)
        for x, y in _WAYS
    ),
    *(Matmul(rows=33, depth=70, columns=41, batch=(1,), adj_x=x, adj_y=y) for x, y in _WAYS),
    *(
        Matmul(rows=rows, depth=depth, columns=columns, adj_x=x, adj_y=y)
        for rows, depth, columns in ((65, 16, 64), (16, 49, 130), (70, 33, 17))
        for x, y in _WAYS
    ),
    # Few rows and a long inner dimension: attention of one token
    *(
        Matmul(rows=rows, depth=depth, columns=columns, adj_y=y)
        for rows, depth, columns in ((1, 1030, 9), (4, 301, 64), (7, 130, 37))
        for y in (False, True)
    ),
    # Ranks and broadcasting
    *(
        Matmul(batch=batch, other=other, adj_x=x, adj_y=y)
        for batch, other in (
            ((), ()),
            ((3,), ()),
            ((), (3,)),
            ((1,), (3,)),
            ((2, 3), (2, 3)),
            ((2, 1), (1, 3)),
            ((2, 3), (3,)),
            ((1, 3), (2, 1)),
            ((3, 1), ()),
        )
        for x, y in ((False, False), (True, True))
    ),
    # Constants on either side; one matrix for all rows is a dense layer
    *(
        Matmul(batch=batch, other=other, adj_x=x, adj_y=y, constant=constant)
        for constant in (0, 1)
        for batch, other in (((), ()), ((2,), (2,)), ((3,), ()), ((2, 3), (1, 1)), ((), (3,)))
        for x, y in _WAYS
    ),
    Matmul(rows=2, depth=600, columns=10, batch=(1,), other=(), constant=1, items=LARGE),
    Matmul(columns=3, adj_y=True, itself=True),
    Matmul(rows=5, columns=5, itself=True),
    # Every tile
    *(
        Matmul(rows=rows, columns=columns, adj_x=x, adj_y=y, items=SMALL)
        for rows in (1, 2, 5)
        for columns in (4, 7, 12)
        for x, y in _WAYS
    ),
    *(Matmul(columns=columns, items=LARGE) for columns in (4, 7, 12)),
)
