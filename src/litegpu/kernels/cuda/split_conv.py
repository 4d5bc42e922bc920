"""What convolutions share whose patch of the image lies on the chip as halves, split or rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Node
from litegpu.kernels.base import Plan, Rejected
from litegpu.kernels.cuda.halves import halves_of, padded
from litegpu.ops.base import KernelRequest, LowerContext
from litegpu.ops.conv_spec import ConvSpec
from litegpu.ops.window import Pair, Window

_FLOATS = npt.NDArray[np.float32]
TOO_LARGE = Rejected("its operands do not fit on the chip")


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
class SplitLaunch:
    """How a kernel is launched: `blocks` below each other, side by side, and of channels."""

    template: str
    threads: int
    blocks: tuple[int, int, int]
    units: int
    """Shared memory of a block, in units of 16 bytes."""
    lanes: int
    """Output channels of all blocks."""


@dataclass(frozen=True, slots=True)
class SplitPlan(Plan):
    """Tiles for a convolution, the best first, and `kernel`, which makes the launch of one."""

    name: str
    spec: ConvSpec
    problem: SplitProblem
    tiles: Sequence[Any]
    kernel: Callable[[Node, LowerContext, Any, Any, ConvSpec], KernelRequest]
    clocks: float
    margin: float

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        tile = ctx.choose((self.name, self.problem), self.tiles)
        return self.kernel(node, ctx, tile, self.problem, self.spec)


def split_kernel(
    node: Node,
    ctx: LowerContext,
    problem: SplitProblem,
    launch: SplitLaunch,
    spec: ConvSpec,
    pack: Callable[[list[_FLOATS]], npt.NDArray[np.uint32]],
    variables: Mapping[str, Any],
) -> KernelRequest:
    """Return the kernel for a convolution; `pack` arranges one or two parts of its weights."""
    dst, src, bias = spec.dst, spec.src, spec.weights.bias
    down, across, columns = launch.blocks
    halves = halves_of(spec.array, ctx.target, problem.split_weights)
    constants: dict[str, npt.NDArray[Any]] = {"weights": pack(halves.parts)}
    if halves.back is not None:
        constants["back"] = padded(halves.back, launch.lanes)
    if bias is not None:
        constants["bias"] = padded(bias, launch.lanes)
    return KernelRequest(
        template=launch.template,
        grid=(columns * launch.threads, down * across * problem.batch, 1),
        local=(launch.threads, 1, 1),
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
        shared=(("uint4", "scratch", launch.units),),
        destination=dst,
        flops=spec.flops,
        needed={"src": problem.view.taken(dst.rows, src.lanes)},
        matrix_flops=spec.flops * problem.products,
    )
