"""What convolutions share whose patch of the image lies on the chip as halves, split or rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage
from litegpu.graph import DType, Node
from litegpu.ops.base import KernelRequest, LowerContext
from litegpu.ops.halves import halves_of, padded
from litegpu.ops.window import Pair, Window

_FLOATS = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SplitProblem:
    """What decides about tiles: the convolution, and which of its operands are split in two."""

    image: Pair
    output: Pair
    batch: int
    channels: int
    outputs: int
    view: Window
    split_values: bool
    split_weights: bool

    @property
    def products(self) -> int:
        """Products of halves that make one of values."""
        return 1 + self.split_values + self.split_weights


@dataclass(frozen=True, slots=True)
class Plan:
    """How a kernel is launched: `blocks` below each other, side by side, and of channels."""

    template: str
    threads: int
    blocks: tuple[int, int, int]
    units: int
    """Shared memory of a block, in units of 16 bytes."""
    lanes: int
    """Output channels of all blocks."""


def split_kernel(
    node: Node,
    ctx: LowerContext,
    problem: SplitProblem,
    plan: Plan,
    weights: _FLOATS,
    bias: _FLOATS | None,
    pack: Callable[[list[_FLOATS]], npt.NDArray[np.uint32]],
    variables: Mapping[str, Any],
    destination: Storage | None,
) -> KernelRequest:
    """Return the kernel for `weights` [O, H, W, I], of which `pack` arranges one or two parts.

    It writes to `destination`, a part of the output, if given.
    """
    dst, src = destination or ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
    down, across, columns = plan.blocks
    halves = halves_of(weights, ctx, problem.split_weights)
    constants: dict[str, npt.NDArray[Any]] = {"weights": pack(halves.parts)}
    if halves.back is not None:
        constants["back"] = padded(halves.back, plan.lanes)
    if bias is not None:
        constants["bias"] = padded(bias, plan.lanes)
    flops = 2 * dst.rows * int(weights.size)
    return KernelRequest(
        template=plan.template,
        grid=(columns * plan.threads, down * across * problem.batch, 1),
        local=(plan.threads, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants=constants,
        variables={
            "SPLIT_A": problem.split_values,
            "SPLIT_W": problem.split_weights,
            "SCALED_W": halves.back is not None,
            "RANGED": src.dtype is DType.FLOAT32,
            "tiles": (down, across),
            "has_bias": bias is not None,
            **problem.view.words(src.shape[1:3]),
            **variables,
        },
        shared=(("uint4", "scratch", plan.units),),
        destination=destination,
        flops=flops,
        needed={"src": problem.view.taken(dst.rows, src.lanes)},
        matrix_flops=flops * problem.products,
    )
