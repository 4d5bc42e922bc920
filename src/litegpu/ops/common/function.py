"""What an element-wise op computes: an expression, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import FLOAT, Register
from litegpu.ops.common.types import FLOATS, Types


@dataclass(frozen=True, slots=True)
class Function:
    """An expression, the highest op version that means it, and the node parameters it uses.

    `takes` and `gives` (None: as its operands) are the types of its operands and of its result,
    which is never infinite or beyond the range of half if `bounded`. It makes an infinity of a zero
    in the inputs numbered `poles`, and zero of zero if it is `through_zero`: what is rounded to
    zero matters there.
    """

    expression: str
    max_version: int = 2
    params: tuple[str, ...] = ()
    takes: Types = FLOATS
    gives: Types | None = FLOATS
    bounded: bool = False
    poles: tuple[int, ...] = ()
    through_zero: bool = False
    integer: str = ""
    """The expression of integers: `{k}` ends the words of their register, `{n[6]}` is 6 in it."""
    typed_by: int = 0
    """The input whose register `{k}` and `{n}` are of."""
    exact: Callable[..., Any] | None = None
    """NumPy's function of the same meaning, for constant integers and bools."""
    makes: Register | None = FLOAT
    """The register of the result; None: that of the input `typed_by`."""
    tables: int = 0
    """How many of the last operands are tables to look up in: no elements for each result."""

    clamps: bool = False
    """Whether it does nothing but keep integers between its attributes `low` and `high`."""

    @property
    def positional(self) -> bool:
        """Whether a result hangs on its place in the value, {i}: it is not made elsewhere."""
        return "{i}" in self.expression
