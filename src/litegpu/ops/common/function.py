"""The function of an element-wise op: an expression and its properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import FLOAT, Register
from litegpu.ops.common.types import FLOATS, Types


@dataclass(frozen=True, slots=True)
class Function:
    """The function of an element-wise op: an expression, and the highest op version it applies to.

    `takes` and `gives` are the types of operands and result (`gives` None: the operands' type).
    `bounded`: the result is finite and within the range of half. `poles` are the inputs for which
    zero gives infinity; `through_zero`: zero gives zero. For both, rounding to zero would matter.
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
    """The expression for integers: `{k}` is the register type's suffix, `{n[6]}` the literal 6."""
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
    """Whether the function only clamps integers to its attributes `low` and `high`."""

    @property
    def positional(self) -> bool:
        """Whether results depend on the element's index {i}; then passes must not move the op."""
        return "{i}" in self.expression
