"""Products of two computed matrices on tensor cores: cuda/matmul."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.tiles import Region, SharedMemory, consecutive
from litegpu.kernels.examples import MatmulExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.matmul_spec import MatmulSpec
from litegpu.ops.common.units import Unit

_TILE = 64
"""Number of rows and columns of the result per block."""
_THREADS = 128
_SHARED = SharedMemory(
    (
        *consecutive(("left", "float", _TILE * 20), ("right", "float", _TILE * 20)),
        Region("sums", "float", _TILE * (_TILE + 4)),
    )
)
"""Shared memory of a block: 16 elements of the inner dimension of both operands, later reused for
the sums.
"""
_SMALLEST = 16
"""Minimum size: smaller matrices leave most of a tile of 64 x 64 x 16 empty."""


class Matmul(Implementation):
    """A kernel that computes tiles of 64 x 64 in tf32."""

    name = "cuda/matmul"
    example = MatmulExample(33, 17, 40)

    def plan(self, spec: MatmulSpec, target: Target) -> Plan | Rejected:
        if not target.model.tensor_cores:
            return Rejected("the device has no tensor cores")
        if min(spec.rows, spec.dst.channels, spec.depth) < _SMALLEST:
            return Rejected("the matrices would leave most of a tile empty")
        return _MatmulPlan(spec)


@dataclass(frozen=True, slots=True)
class _MatmulPlan(Plan):
    """The plan of cuda/matmul, which has a single tile size."""

    spec: MatmulSpec

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec = self.spec
        splits = [operand.dtype is DType.FLOAT32 for operand in (spec.left, spec.right)]
        blocks = -(-spec.rows // _TILE)
        return KernelRequest(
            template=Matmul.name,
            grid=(-(-spec.dst.channels // _TILE) * _THREADS, blocks * spec.products, 1),
            local=(_THREADS, 1, 1),
            output=node.outputs[0],
            reads={"left": node.inputs[0], "right": node.inputs[1]},
            variables={
                "SPLIT_A": splits[0],
                "SPLIT_B": splits[1],
                "shared": _SHARED,
                **spec.words(blocks),
            },
            shared=_SHARED.arrays,
            work={Unit.TF32_MATRIX: spec.flops},
            products=1 + sum(splits),
        )
