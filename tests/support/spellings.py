"""Activations as models express them in several ops, as data for tests of compose_elementwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

X = "x"
"""The value that an activation is applied to."""

Expression = Any
"""X, a number, or a tuple: an operation, its operands, and the fused activation, if any."""

_ROOT = math.sqrt(2 / math.pi)
_SHIFTED = ("ADD", X, 3.0, "RELU6")
_CUBE = ("MUL", ("MUL", X, X), X)
_INNER = ("MUL", _ROOT, ("ADD", X, ("MUL", _CUBE, 0.044715)))
_CLIPPED = ("MINIMUM", ("MAXIMUM", ("ADD", X, 3.0), 0.0), 6.0)


def _gelu(inner: Expression) -> Expression:
    return ("MUL", ("MUL", 0.5, X), ("ADD", 1.0, ("TANH", inner)))


_T = ("DIV", 1.0, ("ADD", ("MUL", ("ABS", X), 0.23164189), 1.0))
"""Of the polynomial that approximates the error function (Abramowitz and Stegun, 7.1.26)."""


def _erf_of_root() -> Expression:
    """Return erf(x / sqrt(2)) by its polynomial, as converters without ERF write it."""
    inner: Expression = 1.061405429
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        inner = ("ADD", ("MUL", inner, _T), factor)
    bell = ("EXP", ("MUL", ("MUL", X, X), -0.5))
    return ("MUL", ("SIGN", X), ("SUB", 1.0, ("MUL", ("MUL", inner, _T), bell)))


_SOFTPLUS = ("LOG", ("ADD", ("EXP", X), 1.0))

SPELLED: Mapping[str, Expression] = {
    "product_by_sixth": ("MUL", ("MUL", X, _SHIFTED), 1 / 6),
    "product_over_six": ("DIV", ("MUL", _SHIFTED, X), 6.0),
    "gate_by_sixth": ("MUL", X, ("MUL", 1 / 6, _SHIFTED)),
    "gate_over_six": ("MUL", ("DIV", _SHIFTED, 6.0), X),
    "own_relu6": ("MUL", ("RELU6", ("ADD", 3.0, X)), ("MUL", X, 1 / 6)),
    "clipped": ("DIV", ("MUL", X, _CLIPPED), 6.0),
    "relu_below_one": (
        "MUL",
        X,
        ("MINIMUM", ("ADD", ("MUL", X, 1 / 6), 0.5, "RELU"), 1.0),
    ),
    "tanh_of_products": _gelu(_INNER),
    "tanh_of_power": _gelu(("MUL", ("ADD", X, ("MUL", 0.044715, ("POW", X, 3.0))), _ROOT)),
    "tanh_of_square": _gelu(
        ("MUL", ("MUL", X, _ROOT), ("ADD", ("MUL", ("SQUARE", X), 0.044715), 1.0))
    ),
    "half_last": ("MUL", ("MUL", X, ("ADD", ("TANH", _INNER), 1.0)), 0.5),
    "minus_the_negative": _gelu(("SUB", ("MUL", _ROOT, X), ("MUL", -0.044715 * _ROOT, _CUBE))),
    "erf_by_polynomial": ("MUL", ("MUL", X, 0.5), ("ADD", _erf_of_root(), 1.0)),
    "sigmoid": ("MUL", X, ("LOGISTIC", X)),
    "sigmoid_of_multiple": ("MUL", ("LOGISTIC", ("MUL", 1.702, X)), X),
    "sigmoid_of_negative": ("MUL", ("LOGISTIC", ("NEG", X)), X),
    "sigmoid_by_exp": ("DIV", X, ("ADD", ("EXP", ("NEG", X)), 1.0)),
    "mish": ("MUL", X, ("TANH", _SOFTPLUS)),
    "squareplus": ("MUL", ("ADD", X, ("SQRT", ("ADD", ("SQUARE", X), 4.0))), 0.5),
    "leaky_relu_by_maximum": ("MAXIMUM", X, ("MUL", X, 0.1)),
    "elu_by_relus": ("ADD", ("RELU", X), ("SUB", ("EXP", ("MINIMUM", X, 0.0)), 1.0)),
    "shrinkage": ("SUB", X, ("MINIMUM", ("MAXIMUM", X, -1.0), 1.0)),
}
"""Activations by name."""


Build = Callable[[str, list[Any], str], Any]
"""Adds an operation with a fused activation to a model and returns its result."""


def spell(expression: Expression, x: Any, build: Build) -> Any:
    """Add an expression of `x` to a model; `build` gets numbers as they are.

    Parts that are written alike are computed once.
    """
    known: dict[Expression, Any] = {X: x}

    def result(part: Expression) -> Any:
        if isinstance(part, float):
            return part
        if part not in known:
            name, *operands = part
            activation = operands.pop() if str(operands[-1]).startswith("RELU") else "NONE"
            known[part] = build(name, [result(each) for each in operands], activation)
        return known[part]

    return result(expression)
