"""What every implementation of a spec provides: whether it computes it, how, and how fast."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import numpy as np

from litegpu.codegen import Storage
from litegpu.graph import EpilogueOp, Node
from litegpu.kernels.examples import Example
from litegpu.ops.base import KernelRequest, LowerContext, Target


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why an implementation does not compute a spec, or does not pay."""

    reason: str


class Plan(ABC):
    """How an implementation computes a spec on a device."""

    clocks: float = math.nan
    """Estimated clocks of the device's busiest compute unit; NaN where nothing is compared."""
    max_clock_ratio: float = math.inf
    """Which part of the clocks of a general implementation it may take; neither is exact."""
    rounds_input: bool = False
    """Whether it rounds float32 elements of its input to half: stored so, they lose no more."""

    @abstractmethod
    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        """Return the kernel launch that computes the spec for a node."""


class Implementation(ABC):
    """One way to compute specs of a kind. `name` is that of its kernel template, if not `also`.

    What is named "cuda/..." is written in the language of that backend, and asked on its devices
    only; all else is written for every backend.
    """

    name: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    """Further templates, for tiles of which blocks work in another way."""
    general: ClassVar[bool] = False
    """Whether it takes what special ones leave, which come before it: see Plan.max_clock_ratio."""
    example: ClassVar[Example]
    """What it is selected for, on an H100 if its kernel is CUDA's."""
    small: ClassVar[Example | None] = None
    """What it computes on a device of one multiprocessor, soon enough for an emulator of it.

    None where `example` is that, or where no small thing is computed so.
    """

    @property
    def backend(self) -> str:
        """The only backend whose devices have its kernel, or "" if all have it."""
        return self.name.rpartition("/")[0]

    @property
    def templates(self) -> tuple[str, ...]:
        """The names of its kernel templates."""
        return (self.name, *self.also)

    @abstractmethod
    def plan(self, spec: Any, target: Target) -> Plan | Rejected:
        """Return how it computes a spec on a device, or why it does not."""

    def rank(self, spec: Any) -> int:
        """Return how late it comes among the others of its sort; equals in their own order."""
        return 0


def outline(spec: Any) -> Hashable:
    """Return what specs of different graphs have in common if kernels for them are alike.

    That is all but the contents of arrays, and the numbers and places of values.
    """
    if isinstance(spec, np.ndarray):
        return (spec.dtype.name, spec.shape)
    if isinstance(spec, Storage):
        return (spec.dtype, spec.shape, spec.strides, spec.padded_channels, spec.vector)
    if isinstance(spec, EpilogueOp):
        return (spec.function, len(spec.operands))
    if is_dataclass(spec):
        parts = (outline(getattr(spec, each.name)) for each in fields(spec))
        return (type(spec).__name__, *parts)
    return tuple(map(outline, spec)) if isinstance(spec, tuple) else spec


IN_MEMORY = Rejected("")
"""It reads its operand from memory, whatever would compute it: nothing to tell anybody."""
