"""Activations as models spell them out, as data: what the recognizing pass is tested with."""

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


SPELLED: Mapping[str, tuple[str, Expression]] = {
    "product_by_sixth": ("HARD_SWISH", ("MUL", ("MUL", X, _SHIFTED), 1 / 6)),
    "product_over_six": ("HARD_SWISH", ("DIV", ("MUL", _SHIFTED, X), 6.0)),
    "gate_by_sixth": ("HARD_SWISH", ("MUL", X, ("MUL", 1 / 6, _SHIFTED))),
    "gate_over_six": ("HARD_SWISH", ("MUL", ("DIV", _SHIFTED, 6.0), X)),
    "own_relu6": ("HARD_SWISH", ("MUL", ("RELU6", ("ADD", 3.0, X)), ("MUL", X, 1 / 6))),
    "clipped": ("HARD_SWISH", ("DIV", ("MUL", X, _CLIPPED), 6.0)),
    "clipped_from_above": (
        "HARD_SWISH",
        ("MUL", X, ("DIV", ("MAXIMUM", ("MINIMUM", ("ADD", X, 3.0), 6.0), 0.0), 6.0)),
    ),
    "relu_below_one": (
        "HARD_SWISH",
        ("MUL", X, ("MINIMUM", ("ADD", ("MUL", X, 1 / 6), 0.5, "RELU"), 1.0)),
    ),
    "tanh_of_products": ("GELU_TANH", _gelu(_INNER)),
    "tanh_of_power": (
        "GELU_TANH",
        _gelu(("MUL", ("ADD", X, ("MUL", 0.044715, ("POW", X, 3.0))), _ROOT)),
    ),
    "tanh_of_square": (
        "GELU_TANH",
        _gelu(("MUL", ("MUL", X, _ROOT), ("ADD", ("MUL", ("SQUARE", X), 0.044715), 1.0))),
    ),
    "half_last": ("GELU_TANH", ("MUL", ("MUL", X, ("ADD", ("TANH", _INNER), 1.0)), 0.5)),
    "halves_added": (
        "GELU_TANH",
        ("MUL", X, ("ADD", ("DIV", ("TANH", _INNER), 2.0), 0.5)),
    ),
    "minus_the_negative": (
        "GELU_TANH",
        _gelu(("SUB", ("MUL", _ROOT, X), ("MUL", -0.044715 * _ROOT, _CUBE))),
    ),
    "sigmoid": ("SWISH", ("MUL", X, ("LOGISTIC", X))),
    "sigmoid_of_multiple": ("SWISH", ("MUL", ("LOGISTIC", ("MUL", 1.702, X)), X)),
    "sigmoid_of_negative": ("SWISH", ("MUL", ("LOGISTIC", ("NEG", X)), X)),
}
"""The step that each spelling means, and the spelling."""


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
