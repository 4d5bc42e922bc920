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
from litegpu.ops.quantized_matmul import QuantizedMatmulSpec


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
