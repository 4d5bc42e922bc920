"""The function of an element-wise op: an expression and its properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import FLOAT, Register
from litegpu.ops.common.types import FLOATS, Types


@dataclass(frozen=True, slots=True)
class Function:
    """An expression, the highest op version with this meaning, and the node parameters it uses.

    `takes` and `gives` (None: as its operands) are the types of its operands and of its result,
    which is finite and within the range of half if `bounded`. It returns infinity for a zero in the
    inputs `poles`, and zero for zero if it is `through_zero`: rounding to zero matters there.
    """

    expression: str
    max_version: int = 1
    params: tuple[str, ...] = ()
    takes: Types = FLOATS
    gives: Types | None = FLOATS
    bounded: bool = False
    poles: tuple[int, ...] = ()
    through_zero: bool = False
    integer: str = ""
    """The expression for integers: `{k}` is the suffix of their words, `{n[6]}` the literal 6."""
    typed_by: int = 0
    """The input whose register type determines `{k}` and `{n}`."""
    exact: Callable[..., Any] | None = None
    """The equivalent NumPy function, for constant integers and bools."""
    makes: Register | None = FLOAT
    """The register type of the result; None: that of the input `typed_by`."""
    tables: int = 0
    """Number of the last operands that are lookup tables, not element-wise operands."""

    grows: bool = False
    """Whether results may need more bits than operands: integers wrap around within their type."""
    clamps: bool = False
    """Whether it only clamps integers to its attributes `low` and `high`."""

    @property
    def positional(self) -> bool:
        """Whether a result depends on its index in the value, {i}: then passes do not move it."""
        return "{i}" in self.expression
