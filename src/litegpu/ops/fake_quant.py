"""FAKE_QUANT: rounds floats to the nearest number that an n-bit quantized integer represents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Values, add, one_of
from litegpu.ops.common import checks
from litegpu.ops.common.functions import FUNCTIONS
from litegpu.ops.elementwise import Unary

_ON_GRID = "ON_GRID"
_MAX_BITS = 16


class FakeQuant(Unary):
    """Rounds floats to numbers that integers of `num_bits` bits represent, including 0."""

    accepts: ClassVar[Mapping[str, Values]] = {
        "narrow_range": one_of(False, wrong=(True,)),
        "num_bits": Values(about="2 to 16", wrong=(1, 17)),
        "min": Values(about="below `max`"),
    }

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(super().check(graph, node), lambda: _check_range(node.params))

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        epilogue_op = EpilogueOp(_ON_GRID, attributes=_grid(node.params))
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=(epilogue_op,)),)


def _check_range(params: Mapping[str, Any]) -> str:
    low, high, bits = params["min"], params["max"], params["num_bits"]
    if params["narrow_range"]:
        return "The parameter narrow_range is True, which the CPU rejects."
    if not 2 <= bits <= _MAX_BITS:
        return f"The parameter num_bits is {bits}; 2 to {_MAX_BITS} are supported."
    return "" if low < high else f"Its range from {low} to {high} is empty."


def _grid(params: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return the range and step in float32 as on the CPU, shifted so that 0 is representable."""
    low, high = np.float32(params["min"]), np.float32(params["max"])
    most = np.float32((1 << params["num_bits"]) - 1)
    step = (high - low) / most
    zero = np.float32(np.floor(np.clip(-low / step, np.float32(0), most) + np.float32(0.5)))
    ends = -zero * step, (most - zero) * step
    return (
        ("low", float(ends[0])),
        ("high", float(ends[1])),
        ("step", float(step)),
        ("inverse", float(np.float32(1) / step)),
    )


add(FakeQuant("FAKE_QUANT", replace(FUNCTIONS[_ON_GRID], max_version=2)))
