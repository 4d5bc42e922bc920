"""The function of an elementwise op: an expression and its properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import FLOAT, Register
from litegpu.ops.common.types import FLOATS, Types


@dataclass(frozen=True, slots=True)
class Function:
    """The function of an elementwise op: an expression, and the highest supported op version.

    `takes` and `gives` are the types of operands and result; if `gives` is None, the result has the
    operands' type. A `bounded` result is finite and within the range of float16. `poles` are the
    positions of inputs for which zero gives an infinite result. A function with `through_zero`
    returns zero for zero. Rounding an input to zero would change the results at poles and of
    functions `through_zero`.
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
    """The expression for integers, with `{k}` for the register type's suffix and `{n[6]}` for
    literal 6.
    """
    typed_by: int = 0
    """The input whose register type determines `{k}` and `{n}`."""
    exact: Callable[..., Any] | None = None
    """The equivalent NumPy function, for constant integers and bools."""
    makes: Register | None = FLOAT
    """The register type of the result; None if the result has the register type of input
    `typed_by`.
    """
    tables: int = 0
    """Number of trailing operands that are lookup tables instead of elementwise operands."""

    grows: bool = False
    """Whether results may need more bits than operands, so that integers wrap around within their
    type.
    """
    clamps: bool = False
    """Whether the function only clamps integers to its attributes `low` and `high`."""

    @property
    def positional(self) -> bool:
        """Whether results depend on the element index {i}, so that passes must not move the op."""
        return "{i}" in self.expression
