"""Products of two computed matrices in the portable dialect."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.codegen import register_of
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.examples import MatmulExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.matmul_spec import MatmulSpec
from litegpu.ops.common.portable_tiles import TileProblem, choose_tile
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import DividedSums, divide_sums
from litegpu.ops.quantized_matmul import QuantizedMatmulSpec

_MAX_ROWS = 4
"""Maximum rows per work item, which needs four float4 registers per row."""


class MatmulSplit(Implementation):
    """A kernel whose work items divide each sum: for results too small to keep the device busy."""

    name = "batch_matmul_split_k"
    general = True
    example = MatmulExample(2, 512, 24)

    def plan(self, spec: MatmulSpec, target: Target) -> Plan | Rejected:
        if spec.transposed[0]:
            return Rejected("the left matrix is transposed")
        if spec.dst.rows * spec.dst.channel_blocks * 4 > target.parallel_items:
            return Rejected("the result has enough elements to keep the device busy")
        rows = min(spec.rows, _MAX_ROWS)
        blocks = spec.products * -(-spec.rows // rows)
        ends = (spec.dst.channel_blocks, -(-spec.depth // 4), target, not spec.transposed[1])
        found = divide_sums(blocks, rows, *ends)
        return Rejected(found) if isinstance(found, str) else _SplitKPlan(spec, found)


@dataclass(frozen=True, slots=True)
class _SplitKPlan(Plan):
    """The plan of divided sums."""

    spec: MatmulSpec
    sums: DividedSums

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec, sums = self.spec, self.sums
        blocks = -(-spec.rows // sums.rows)
        return KernelRequest(
            template="batch_matmul_split_k",
            grid=sums.grid(spec.dst.channel_blocks, blocks * spec.products),
            local=(sums.group, 1, 1),
            output=node.outputs[0],
            reads={"left": node.inputs[0], "right": node.inputs[1]},
            variables={**sums.words(), **spec.words(blocks)},
            shared=(("float4", "scratch", sums.rows * sums.group),),
            work={Unit.FP32: spec.flops},
        )


class MatmulPortable(Implementation):
    """A kernel whose work items compute tiles of rows and blocks of 4 columns."""

    name = "batch_matmul"
    general = True
    example = MatmulExample(3, 4, 5)

    def plan(self, spec: MatmulSpec, target: Target) -> Plan | Rejected:
        return _MatmulPlan(spec, _problem(self.name, spec), Unit.FP32)


class QuantizedMatmulPortable(Implementation):
    """A kernel like MatmulPortable for bytes, with four products per instruction."""

    name = "quantized_matmul"
    general = True
    example = MatmulExample(3, 4, 5, quantized=True)

    def plan(self, spec: QuantizedMatmulSpec, target: Target) -> Plan | Rejected:
        return _MatmulPlan(spec, _problem(self.name, spec), Unit.INT8_DOT)


def _problem(template: str, spec: MatmulSpec) -> TileProblem:
    dst = spec.dst
    terms = (spec.rows, spec.depth, *map(int, spec.transposed))
    return TileProblem(template, dst.rows, dst.channel_blocks, terms, spec.left.dtype.value)


@dataclass(frozen=True, slots=True)
class _MatmulPlan(Plan):
    """The plan of a matrix product: the properties that determine its tiles."""

    spec: MatmulSpec
    problem: TileProblem
    unit: Unit
    """The unit that multiplies."""

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec = self.spec
        pixels, channel_blocks = choose_tile(self.problem, ctx)
        pixels = min(pixels, spec.rows)
        blocks = -(-spec.rows // pixels)
        return KernelRequest(
            template=self.problem.template,
            grid=(-(-spec.dst.channel_blocks // channel_blocks), blocks * spec.products, 1),
            output=node.outputs[0],
            reads={"left": node.inputs[0], "right": node.inputs[1]},
            variables={
                "PIXELS": pixels,
                "CHANNEL_BLOCKS": channel_blocks,
                **spec.words(blocks),
            },
            work={self.unit: spec.flops},
            accumulator=register_of(spec.left.dtype),
        )
