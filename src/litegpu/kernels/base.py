"""The interface of implementations: whether they can compute a spec, how, and how fast."""

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
from litegpu.ops.common.dequantized import Dequantized


@dataclass(frozen=True, slots=True)
class Rejected:
    """The reason why an implementation cannot compute a spec, or would not be faster."""

    reason: str


class Plan(ABC):
    """Represents how an implementation computes a spec on a device."""

    clocks: float = math.nan
    """Estimated clocks of the device's busiest compute unit; NaN if the selection does not compare
    them.
    """
    max_clock_ratio: float = math.inf
    """Maximum ratio of the plan's estimated clocks to those of a general implementation."""
    rounds_input: bool = False
    """Whether the kernel rounds float32 inputs to half: storing these inputs as half then loses
    nothing more.
    """

    @abstractmethod
    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        """Return the kernel launch that computes the spec for a node."""


class Implementation(ABC):
    """An implementation of specs of one kind by a kernel.

    `name` is the main kernel template of the implementation; `also` has further templates.

    Kernels with names "cuda/..." are written in CUDA and selected only on CUDA devices; all other
    kernels are portable.
    """

    name: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    """Additional kernel templates, for tiles that need another algorithm."""
    general: ClassVar[bool] = False
    """Whether the implementation is a fallback for specs that special implementations reject: see
    Plan.max_clock_ratio.
    """
    example: ClassVar[Example]
    """A spec for which the implementation is selected (on an H100, if its kernel is a CUDA kernel).
    """
    small: ClassVar[Example | None] = None
    """A spec that the implementation computes on a device with one multiprocessor, fast enough for
    the emulator.

    `small` is None if `example` is such a spec, or if there is no such spec.
    """

    @property
    def backend(self) -> str:
        """The only backend that has the implementation's kernel; "" if all backends have it."""
        return self.name.rpartition("/")[0]

    @property
    def templates(self) -> tuple[str, ...]:
        """The names of the implementation's kernel templates."""
        return (self.name, *self.also)

    @abstractmethod
    def plan(self, spec: Any, target: Target) -> Plan | Rejected:
        """Return how the implementation computes a spec on a device, or why it cannot."""

    def rank(self, spec: Any) -> int:
        """Return a sort key among implementations of a kind; equal keys keep the listed order."""
        return 0


def outline(spec: Any) -> Hashable:
    """Return a key that is equal for specs of different graphs if their kernels are equal.

    The key includes everything except the contents of arrays, and the ids and storages of values.
    """
    if isinstance(spec, np.ndarray | Dequantized):
        return (spec.dtype.name, spec.shape)
    if isinstance(spec, Storage):
        return (spec.dtype, spec.shape, spec.strides, spec.padded_channels, spec.vector)
    if isinstance(spec, EpilogueOp):
        return (spec.function, len(spec.operands), spec.steps)
    if is_dataclass(spec):
        parts = (outline(getattr(spec, each.name)) for each in fields(spec))
        return (type(spec).__name__, *parts)
    return tuple(map(outline, spec)) if isinstance(spec, tuple) else spec


IN_MEMORY = Rejected("")
"""A rejection without a reason, for a spec whose input is in memory; diagnostics omit this
rejection.
"""
