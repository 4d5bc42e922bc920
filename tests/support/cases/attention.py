"""Cases of attention as converters write it: products, a softmax between them, heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cases.base import ANY, LARGE, SMALL, Case, Range, Shape, Sheet
from litegpu.zoo.writer import TensorRef

_TOKEN = 20
"""Channels of a token of which queries, keys and values are made."""
_PLAIN: dict[str, bool | str] = {"fused_activation_function": "NONE"}


@dataclass(frozen=True, kw_only=True)
class Attention(Case):
    """Attention of `heads` heads of `depth` channels.

    `across`: queries, keys, values and the result are [batch, tokens, heads * depth]; RESHAPE and
    TRANSPOSE bring the heads ahead. `rows`: heads are rows of the batch; `regrouped`: of the
    products only, the softmax has batch and heads, which a RESHAPE or the mask brings. `turned`:
    the keys are transposed by TRANSPOSE, not by the product; `lying` ones come as [depth, keys].
    With `lying_values`, values come as [depth, keys]. `mask` is the shape of a mask, which
    hides the `hidden` last keys of all, or is seeded. `added` is added to the result. `projected`:
    queries, keys and values are fully connected layers of one input each, of as many tokens.
    `packed`: they are slices of one input, which is transposed as a whole. `spread`: the square
    root of the scale multiplies queries and keys, not their products. Neighboring heads of as many
    queries as `share` read the same head of keys and values, which the operation `repeat` repeats;
    without one, all read the same, which the product broadcasts. A mask is added, or with `choice`
    chooses between scores and -1e9 (SELECT_V2). Each of `windows` has a mask of its own, added to
    scores of one more dimension. TANH restricts scores to `cap`. `scaled`: the scale multiplies the
    "query" or the "key". `casts`: CAST to the same type stands before the softmax and after it.
    `rotary` positions turn queries and keys: "joined" are the halves of their channels in exchanged
    order, which sines multiply; of "apart" ones each half is computed by itself.
    """

    batch: int = 1
    heads: int = 2
    queries: int = 5
    keys: int = 7
    depth: int = 4
    columns: int = 0
    across: bool = False
    rows: bool = False
    regrouped: bool = False
    turned: bool = False
    lying: bool = False
    lying_values: bool = False
    scale: float | None = 0.5
    mask: Shape | None = None
    hidden: int = 0
    added: bool = False
    projected: bool = False
    packed: bool = False
    spread: bool = False
    share: int = 1
    repeat: str = ""
    choice: bool = False
    windows: int = 0
    cap: float | None = None
    scaled: str = ""
    casts: bool = False
    rotary: str = ""
    values: Range = ANY

    def write(self, sheet: Sheet) -> None:
        """Three inputs, or one that is projected, and one output."""
        columns = self.columns or self.depth
        row = (self.batch, self.queries, _TOKEN)
        token = sheet.input(row, self.values) if self.projected else None
        turned = (0, 2, 3, 1) if self.across else (0, 1, 3, 2)
        order = turned if self.turned else (0, 2, 1, 3)
        if self.packed:
            query, key, value = self._unpacked(sheet)
        else:
            turning = bool(self.rotary)
            query = self._heads(sheet, self.queries, self.depth, (0, 2, 1, 3), token, 1, turning)
            key = (
                self._lying(sheet, self.depth)
                if self.lying
                else self._heads(sheet, self.keys, self.depth, order, token, self.share, turning)
            )
            value = (
                self._lying(sheet, columns)
                if self.lying_values
                else self._heads(sheet, self.keys, columns, (0, 2, 1, 3), token, self.share)
            )
        if self.spread and self.scale is not None:
            factor = sheet.constant(self.scale**0.5)
            query, key = (sheet.op("MUL", [each, factor], _PLAIN) for each in (query, key))
        elif self.scaled and self.scale is not None:
            factor = sheet.constant(self.scale)
            if self.scaled == "query":
                query = sheet.op("MUL", [query, factor], _PLAIN)
            else:
                key = sheet.op("MUL", [key, factor], _PLAIN)
        options = {"adj_x": False, "adj_y": not (self.turned or self.lying)}
        scores = sheet.op("BATCH_MATMUL", [query, key], options)
        if self.regrouped and (self.batch > 1 or self.mask is None):
            whole = (self.batch, self.heads, self.queries, self.keys)
            scores = self._reshape(sheet, scores, whole)
        if self.scale is not None and not self.spread and not self.scaled:
            scores = sheet.op("MUL", [scores, sheet.constant(self.scale)], _PLAIN)
        if self.cap is not None:
            scores = sheet.op("MUL", [scores, sheet.constant(1 / self.cap)], _PLAIN)
            scores = sheet.op("TANH", [scores])
            scores = sheet.op("MUL", [scores, sheet.constant(self.cap)], _PLAIN)
        if self.mask is not None:
            scores = self._masked(sheet, scores, self._mask(sheet, self.mask))
        if self.windows:
            images = self.batch // self.windows
            windows = (images, self.windows, self.heads, self.queries, self.keys)
            mask = (1, self.windows, 1, self.queries, self.keys)
            added = sheet.constant(sheet.random.integers(-2, 1, mask) * 1.5)
            scores = sheet.op("ADD", [self._reshape(sheet, scores, windows), added], _PLAIN)
            scores = self._reshape(sheet, scores, (self.batch, *windows[2:]))
        if self.casts:
            scores = self._cast(sheet, scores)
        scores = sheet.op("SOFTMAX", [scores], {"beta": 1.0})
        if self.casts:
            scores = self._cast(sheet, scores)
        if self.regrouped:
            flat = (self.batch * self.heads, self.queries, self.keys)
            scores = self._reshape(sheet, scores, flat)
        result = sheet.op(
            "BATCH_MATMUL", [scores, value], {"adj_x": False, "adj_y": self.lying_values}
        )
        shape: Shape = (self.batch, self.heads, self.queries, columns)
        if self.rows or self.regrouped:
            result = self._reshape(sheet, result, shape)
        if self.across:
            result = self._transpose(sheet, result, (0, 2, 1, 3))
            shape = (self.batch, self.queries, self.heads * columns)
            result = self._reshape(sheet, result, shape)
        if self.added:
            result = sheet.op("ADD", [result, sheet.input(shape)], _PLAIN)
        sheet.output(result)

    def _heads(
        self,
        sheet: Sheet,
        tokens: int,
        depth: int,
        order: tuple[int, ...],
        token: TensorRef | None,
        share: int = 1,
        turning: bool = False,
    ) -> TensorRef:
        """Add what is [batch, heads, tokens, depth], perhaps turned: an input, or of tokens."""
        heads = self.heads // share
        if self.across:
            source = self._rows(sheet, tokens, heads * depth, token)
            source = self._reshape(sheet, source, (self.batch, tokens, heads, depth))
            first = (0, 2, 1, 3) if share > 1 or turning else order
            source = self._transpose(sheet, source, first)
        else:
            source = sheet.input((self.batch, heads, tokens, depth), self.values)
        if turning:
            source = self._rotated(sheet, source, (self.batch, heads, tokens, depth))
        if share > 1:
            source = self._repeated(sheet, source, (self.batch, heads, tokens, depth))
        if order == (0, 1, 3, 2) or (order == (0, 2, 3, 1) and (share > 1 or turning)):
            source = self._transpose(sheet, source, (0, 1, 3, 2))
        if self.rows or self.regrouped:
            turned = order in ((0, 2, 3, 1), (0, 1, 3, 2))
            matrix = (depth, tokens) if turned else (tokens, depth)
            source = self._reshape(sheet, source, (self.batch * self.heads, *matrix))
        return source

    def _lying(self, sheet: Sheet, depth: int) -> TensorRef:
        """Add a value whose matrices are [depth, keys]; with `across`, the heads are in between."""
        heads = self.heads // self.share
        inner = (depth, heads) if self.across else (heads, depth)
        key = sheet.input((self.batch, *inner, self.keys), self.values)
        return self._transpose(sheet, key, (0, 2, 1, 3)) if self.across else key

    def _rotated(self, sheet: Sheet, source: TensorRef, shape: Shape) -> TensorRef:
        """Add rotary positions to a value of this shape."""
        *_, tokens, depth = shape
        half = depth // 2
        parts: list[TensorRef] = []
        for begin, width in ((0, half), (half, depth - half)):
            ends = ((0, 0, 0, begin), (*shape[:3], width))
            operands = [source, *(sheet.constant(each, "int32") for each in ends)]
            parts += sheet.multi("SLICE", operands, 1, shape=(*shape[:3], width))
        low, high = parts
        angles = np.arange(tokens * depth).reshape(1, 1, tokens, depth) % 61 / 8
        if self.rotary == "joined":
            cosines, sines = (sheet.constant(f(angles)) for f in (np.cos, np.sin))
            other = sheet.op("CONCATENATION", [sheet.op("NEG", [high]), low], {"axis": 3, **_PLAIN})
            same = sheet.op("MUL", [source, cosines], _PLAIN)
            turned = sheet.op("MUL", [other, sines], _PLAIN)
            return sheet.op("ADD", [same, turned], _PLAIN)
        cosines, sines = (sheet.constant(f(angles[..., :half])) for f in (np.cos, np.sin))
        products = [
            sheet.op("MUL", [part, factor], _PLAIN)
            for part, factor in ((low, cosines), (high, sines), (high, cosines), (low, sines))
        ]
        first = sheet.op("SUB", products[:2], _PLAIN)
        second = sheet.op("ADD", products[2:], _PLAIN)
        return sheet.op("CONCATENATION", [first, second], {"axis": 3, **_PLAIN})

    def _repeated(self, sheet: Sheet, source: TensorRef, shape: Shape) -> TensorRef:
        """Repeat each head of a value of this shape."""
        batch, heads, *matrix = shape
        if not self.repeat:
            return source
        if self.repeat == "GATHER":
            indices = sheet.constant(np.repeat(np.arange(heads), self.share), "int32")
            return sheet.op("GATHER", [source, indices], {"axis": 1})
        if self.repeat == "CONCATENATION":
            rows = self._reshape(sheet, source, (batch * heads, 1, *matrix))
            repeated = sheet.op("CONCATENATION", [rows] * self.share, {"axis": 1, **_PLAIN})
        else:
            sizes = {"BROADCAST_TO": (batch, heads), "TILE": (1, 1)}[self.repeat]
            last = tuple(matrix) if self.repeat == "BROADCAST_TO" else (1, 1)
            wanted = sheet.constant((*sizes, self.share, *last), "int32")
            rows = self._reshape(sheet, source, (batch, heads, 1, *matrix))
            version = 2 if self.repeat == "BROADCAST_TO" else 1
            repeated = sheet.op(self.repeat, [rows, wanted], version=version)
        return self._reshape(sheet, repeated, (batch, heads * self.share, *matrix))

    def _unpacked(self, sheet: Sheet) -> list[TensorRef]:
        """Add slices of [3, batch, heads, tokens, depth], which are queries, keys and values."""
        shape = (self.batch, self.heads, self.keys, self.depth)
        token = sheet.input((self.batch, self.keys, 3 * self.heads * self.depth), self.values)
        whole = (self.batch, self.keys, 3, self.heads, self.depth)
        heads = self._transpose(sheet, self._reshape(sheet, token, whole), (2, 0, 3, 1, 4))
        found = []
        for part in range(3):
            ends = ((part, 0, 0, 0, 0), (1, *shape))
            operands = [heads, *(sheet.constant(each, "int32") for each in ends)]
            (cut,) = sheet.multi("SLICE", operands, 1, shape=(1, *shape))
            matrix = self._reshape(sheet, cut, shape)
            if part == 1 and self.turned:
                matrix = self._transpose(sheet, matrix, (0, 1, 3, 2))
            if self.rows or self.regrouped:
                turned = part == 1 and self.turned
                sizes = (self.depth, self.keys) if turned else (self.keys, self.depth)
                matrix = self._reshape(sheet, matrix, (self.batch * self.heads, *sizes))
            found.append(matrix)
        return found

    def _rows(self, sheet: Sheet, tokens: int, channels: int, token: TensorRef | None) -> TensorRef:
        if token is None:
            return sheet.input((self.batch, tokens, channels), self.values)
        # Scores that are not so large that their last digit in half decides.
        weights = sheet.weights((channels, _TOKEN), Range(-0.125, 0.125))
        options = {**_PLAIN, "keep_num_dims": True}
        return sheet.op("FULLY_CONNECTED", [token, weights], options)

    def _cast(self, sheet: Sheet, source: TensorRef) -> TensorRef:
        options = {"in_data_type": "FLOAT32", "out_data_type": "FLOAT32"}
        return sheet.op("CAST", [source], options)

    def _masked(self, sheet: Sheet, scores: TensorRef, mask: TensorRef) -> TensorRef:
        if not self.choice:
            return sheet.op("ADD", [scores, mask], _PLAIN)
        zero, lowest = sheet.constant(0.0), sheet.constant(-1e9)
        visible = sheet.op("GREATER_EQUAL", [mask, zero], dtype="bool")
        return sheet.op("SELECT_V2", [visible, scores, lowest])

    def _mask(self, sheet: Sheet, shape: Shape) -> TensorRef:
        if not self.hidden:
            return sheet.input(shape)
        mask = np.zeros(shape, np.float32)
        mask[..., -self.hidden :] = -1e9
        return sheet.constant(mask)

    def _reshape(self, sheet: Sheet, source: TensorRef, shape: Shape) -> TensorRef:
        options = {"new_shape": shape}
        return sheet.op("RESHAPE", [source, sheet.constant(shape, "int32")], options)

    def _transpose(self, sheet: Sheet, source: TensorRef, order: tuple[int, ...]) -> TensorRef:
        return sheet.op("TRANSPOSE", [source, sheet.constant(order, "int32")])


@dataclass(frozen=True, kw_only=True)
class OneHead(Case):
    """Attention of one head, whose scores are a FULLY_CONNECTED by the keys."""

    queries: int = 5
    keys: int = 7
    depth: int = 4
    columns: int = 9
    lead: Shape = (1, 1)
    """The dimensions of the queries before their matrix."""
    mask: bool = False
    scale: float | None = None

    def write(self, sheet: Sheet) -> None:
        """Three inputs and one output."""
        query = sheet.input((*self.lead, self.queries, self.depth))
        key, value = (sheet.input((self.keys, n)) for n in (self.depth, self.columns))
        options = {**_PLAIN, "keep_num_dims": True}
        scores = sheet.op("FULLY_CONNECTED", [query, key, None], options)
        if self.scale is not None:
            scores = sheet.op("MUL", [scores, sheet.constant(self.scale)], _PLAIN)
        if self.mask:
            scores = sheet.op("ADD", [scores, sheet.input((self.queries, self.keys))], _PLAIN)
        weights = sheet.op("SOFTMAX", [scores], {"beta": 1.0})
        if self.lead:
            flat = sheet.constant((self.queries, self.keys), "int32")
            weights = sheet.op("RESHAPE", [weights, flat])
        products = {"adj_x": False, "adj_y": False}
        sheet.output(sheet.op("BATCH_MATMUL", [weights, value], products))


def _sizes(queries: int, keys: int, depth: int) -> Attention:
    return Attention(queries=queries, keys=keys, depth=depth)


def _projected(*, queries: int, **facts: Any) -> Attention:
    return Attention(queries=queries, keys=queries, across=True, projected=True, **facts)


_SIZES = ((1, 3, 1), (9, 8, 3), (4, 33, 6), (1, 33, 4))

CASES: tuple[Case, ...] = (
    # Odd sizes; other tokens; values that are wider than keys
    *(_sizes(queries, keys, depth) for queries, keys, depth in _SIZES),
    Attention(depth=5, columns=9),
    Attention(depth=20, columns=3, turned=True),
    # One head, without dimensions for batch and heads
    *(OneHead(lead=lead, mask=len(lead) == 1) for lead in ((), (1,), (1, 1))),
    OneHead(queries=33, keys=19, depth=16, scale=0.25, mask=True),
    # Spellings, batches, heads across tokens, what is added behind
    *(Attention(batch=batch, across=True, added=True) for batch in (1, 3)),
    Attention(batch=3, heads=3, across=True, turned=True, depth=8, scale=None),
    Attention(batch=3, heads=2, across=True, rows=True, depth=12),
    Attention(batch=2, heads=3, across=True, depth=5),
    *(Attention(batch=batch, across=True, regrouped=True, turned=True) for batch in (1, 2)),
    *(Attention(batch=batch, regrouped=True, mask=(1, 1, 5, 7), added=True) for batch in (1, 2)),
    # Keys that lie the other way round
    Attention(lying=True, mask=(5, 7)),
    Attention(batch=2, heads=3, across=True, lying=True, depth=8),
    Attention(batch=2, heads=3, share=3, lying=True, depth=6, columns=9),
    # Slices of what is transposed as a whole; a scale of both operands
    *(
        Attention(batch=batch, queries=7, packed=True, spread=True, turned=batch > 1, depth=depth)
        for batch, depth in ((1, 5), (2, 8))
    ),
    Attention(batch=2, heads=3, across=True, regrouped=True, spread=True),
    # Heads that several heads of queries share
    *(
        Attention(batch=batch, heads=6, share=3, repeat=repeat, across=batch > 1, depth=depth)
        for batch, depth in ((1, 8), (2, 5))
        for repeat in ("BROADCAST_TO", "TILE", "GATHER", "CONCATENATION")
    ),
    Attention(batch=2, heads=3, share=3, mask=(2, 1, 5, 7), turned=True),
    Attention(batch=4, heads=3, share=3, windows=2, turned=True, cap=2.0),
    Attention(
        batch=2,
        heads=4,
        queries=19,
        keys=37,
        share=2,
        repeat="BROADCAST_TO",
        across=True,
        regrouped=True,
        turned=True,
        depth=16,
    ),
    # Masks: of each score, of each key, of one head for all; all but one key hidden
    *(Attention(batch=2, mask=shape) for shape in ((2, 2, 5, 7), (1, 1, 1, 7), (2, 1, 5, 7))),
    Attention(batch=2, mask=(1, 1, 5, 7), hidden=6, across=True),
    Attention(batch=2, mask=(1, 1, 5, 7), hidden=3, choice=True, regrouped=True, turned=True),
    *(
        Attention(batch=batch, windows=2, mask=(1, 2, 5, 7), regrouped=True, across=batch > 2)
        for batch in (2, 4)
    ),
    *(Attention(regrouped=True, scaled=scaled, casts=True) for scaled in ("query", "key")),
    Attention(mask=(1, 1, 5, 7), cap=2.0, regrouped=True),
    # Rotary positions: halves in whole channel blocks or not, of unequal size; heads across
    *(
        Attention(heads=4, share=2, repeat="TILE", rotary=rotary, across=depth > 8, depth=depth)
        for rotary in ("joined", "apart")
        for depth in (8, 16, 20)
    ),
    Attention(batch=2, rotary="joined", depth=7, turned=True),
    _projected(batch=2, heads=6, share=3, repeat="GATHER", queries=9, depth=16, rotary="joined"),
    _projected(heads=2, queries=1, depth=16, rotary="joined"),
    # Every way to share out the work
    *(
        Attention(queries=3, keys=keys, depth=depth, mask=(1, 1, 3, keys), items=items)
        for items in (SMALL, LARGE)
        for keys, depth in ((70, 8), (131, 7))
    ),
    Attention(queries=9, keys=66, depth=64, across=True, items=LARGE),
    # What tensor cores make in tiles of 16 queries by 16 keys: one more, one less, wide and narrow
    Attention(queries=19, keys=37, depth=20, across=True),
    Attention(batch=2, heads=3, queries=33, keys=16, depth=16, mask=(2, 3, 33, 16)),
    Attention(queries=17, keys=130, depth=64, across=True, mask=(1, 1, 1, 130), hidden=60),
    Attention(heads=1, queries=8, keys=70, depth=33, columns=9),
    Attention(heads=1, queries=20, keys=50, depth=128, columns=100),
    # Queries, keys and values that one kernel makes: heads lie in rows of all three, or cannot
    _projected(batch=2, heads=3, queries=19, depth=16),
    _projected(heads=2, queries=9, depth=20, columns=12, turned=True),
    _projected(batch=3, queries=6, depth=12, rows=True),
    _projected(heads=3, queries=17, depth=12),
    _projected(heads=4, queries=5, depth=6),
    # Scores far beyond the range of half, which end in one key alone
    Attention(scale=None, values=Range(-64.0, 64.0, grid=1.0)),
    Attention(scale=4.0, keys=70, values=Range(-64.0, 64.0, grid=1.0), items=LARGE),
)
