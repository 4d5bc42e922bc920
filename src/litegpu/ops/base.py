"""The interface of ops: support checks, output shapes, and kernel launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from litegpu.codegen import FLOAT, PLAIN_LAUNCH, LaunchAttributes, Register, Storage
from litegpu.codegen.storage import Shape4
from litegpu.device_model import DeviceModel
from litegpu.errors import CompilationError
from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.numeric_policy import NumericPolicy
from litegpu.ops.common.dequantized import as_dequantized
from litegpu.ops.common.facts import OpFacts
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.plug_ins import import_plug_ins
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import FLOATS, Types
from litegpu.ops.common.units import Operations

Shape = tuple[int, ...]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Cuts:
    """Slices of a value: each output has one range per axis; outputs may omit axes of size 1."""

    source: int
    ranges: tuple[Sequence[range], ...]


class NewValue(Protocol):
    """A function that creates an intermediate value, or a constant if `data` is passed.

    The function returns the id of the new value. Without `dtype`, the value has the type of the
    data or of the node's first result. A `precise` value is never stored as float16.
    """

    def __call__(
        self,
        shape: Shape,
        data: npt.NDArray[Any] | None = None,
        *,
        dtype: DType | None = None,
        precise: bool = False,
    ) -> int: ...


COPY = "COPY"
"""The op name of a node that only has an epilogue (or slices and pads): see ops/copy.py."""


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """A kernel launch that an op requests.

    `grid` is the number of work items along each axis. The engine rounds `grid` up to a multiple of
    the work-group size `local`. The engine also selects `local` if the op does not set it. `reads`
    and `output` map names in the template to value ids. `parts` is a list of inputs that the
    template loops over. `constants` are packed arrays; the kernel reads them as vectors of 4
    elements. `work` is the minimum number of operations.
    """

    template: str
    grid: tuple[int, int, int]
    output: int
    local: tuple[int, int, int] | None = None
    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    """Value ids of further outputs of the kernel, by their names in the template."""
    parts: tuple[int, ...] = ()
    constants: Mapping[str, npt.NDArray[Any] | LazyArray] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    shared: tuple[tuple[str, str, int], ...] = ()
    attributes: LaunchAttributes = PLAIN_LAUNCH
    destination: Storage | None = None
    """The storage of the kernel's output if the kernel writes only a part of the value `output`."""
    inner_epilogue: tuple[EpilogueOp, ...] = ()
    """Epilogue ops of an operand that the template computes on the fly, applied by calling `inner`.
    """
    innermost_epilogue: tuple[EpilogueOp, ...] = ()
    """Epilogue ops of the value from which that operand is computed, applied by calling
    `innermost`.
    """
    work: Operations = field(default_factory=dict)
    needed: Mapping[str, int] = field(default_factory=dict)
    """Number of elements that the kernel reads of each value in `reads`, if not all."""
    written: int | None = None
    """Number of elements of the output that the kernel writes, if not all."""
    products: int = 1
    """Number of matrix-unit products per product of two values; above 1 if values are split into
    parts.
    """
    accumulator: Register = FLOAT
    """The register type of the template's result."""


class Target(Protocol):
    """Device properties and the numeric policy that determine the selection of kernels."""

    @property
    def policy(self) -> NumericPolicy:
        """The numeric policy: which values may be rounded to float16, by their size."""
        ...

    @property
    def backend(self) -> str:
        """The name of the device's compute API, such as "cuda"."""
        ...

    @property
    def max_work_group_size(self) -> int:
        """Maximum number of work items that can share memory and synchronize."""
        ...

    @property
    def local_memory_bytes(self) -> int:
        """The size of a work group's shared memory; 0 if kernels cannot use shared memory."""
        ...

    @property
    def max_arguments(self) -> int:
        """Maximum number of buffers of a kernel."""
        ...

    @property
    def parallel_items(self) -> int:
        """Number of work items that is sufficient to keep the device busy."""
        ...

    @property
    def compute_units(self) -> int: ...

    @property
    def fast_local_memory(self) -> bool:
        """Whether the shared memory of a work group is faster than the cache."""
        ...

    @property
    def model(self) -> DeviceModel:
        """The architecture of the device: multiprocessor resources and optional features."""
        ...

    def failure(self, implementation: str, spec: Any, *, general: bool) -> str:
        """Return why an implementation is excluded for a spec after a failure, or ""."""
        ...


class SpecContext(Protocol):
    """The interface through which an op describes a node by specs."""

    @property
    def target(self) -> Target: ...

    def value(self, value_id: int) -> Value: ...

    def storage(self, value_id: int) -> Storage: ...


class Lowerable(Protocol):
    """The plan selected for a spec: see kernels/base.py."""

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest: ...


class LowerContext(SpecContext, Protocol):
    """The interface through which an op selects its kernels."""

    def plans(self, node: Node) -> Sequence[Lowerable]:
        """Return the plan selected for each of the node's specs."""
        ...

    def choose(self, problem: Hashable, candidates: Sequence[_T]) -> _T:
        """Return the first of several candidates, or the candidate that is fastest in measurements.

        The nonempty list `candidates` is sorted by the op's estimate, the best candidate first.
        `problem` is plain data that determines the candidates and their times; the cache stores its
        text.
        """
        ...


@dataclass(frozen=True, slots=True)
class Values:
    """The supported values of an attribute; a node with other values stays on the CPU.

    `allowed` lists the supported values; `least` is the smallest supported number. `about`
    describes restrictions that depend on the node's operands. If none of these fields is set, all
    values are supported.
    """

    allowed: tuple[Any, ...] = ()
    least: int | None = None
    about: str = ""
    wrong: tuple[Any, ...] = field(default=())
    """Examples of unsupported values, which tests use."""

    def __str__(self) -> str:
        if self.allowed:
            return ", ".join(map(str, self.allowed))
        if self.least is not None:
            return f"≥ {self.least}"
        return self.about or "any"


def one_of(*allowed: Any, wrong: tuple[Any, ...] = ()) -> Values:
    """Return a rule that permits only the listed values of an attribute."""
    return Values(allowed=allowed, wrong=wrong)


class Exact(ABC):
    """The bit-exact implementation of an operation's quantized nodes."""

    @abstractmethod
    def check(self, graph: Graph, node: Node) -> str:
        """Return why this node cannot run on the GPU, or an empty text if it can."""

    @abstractmethod
    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Return the nodes that compute the quantized node on stored integers."""


class Op(OpFacts, ABC):
    """An operation that has kernels. Subclasses are registered by `register`."""

    max_version: ClassVar[int]
    internal: ClassVar[bool] = False
    """Whether only litegpu creates nodes of this op, so that no model file contains such a node."""

    takes: ClassVar[tuple[Types, ...]] = (FLOATS,)
    """The supported types of each computed input; the last entry applies to all further inputs."""
    gives: ClassVar[Types | None] = FLOATS
    """The types of the outputs; None if outputs have the type of the inputs with the rule
    `STORABLE`.
    """
    exact: ClassVar[Exact | None] = None
    """The implementation for quantized tensors; None if nodes with quantized tensors stay on the
    CPU.
    """
    accepts: ClassVar[Mapping[str, Values]] = {}
    """The supported values of attributes that differ from the default values."""

    @abstractmethod
    def check(self, graph: Graph, node: Node) -> str:
        """Return why this node cannot run on the GPU, or an empty text if it can."""

    @abstractmethod
    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        """Return the output shapes of a checked node, computed from its input shapes."""

    def cuts(self, graph: Graph, node: Node) -> Cuts | None:
        """Return the input slices that the outputs of a checked node equal; None for other ops."""
        return None

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Return the node with resolved attributes, or the nodes that replace the node."""
        return (node,)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[Any]:
        """Return the specs of a normalized node, if there are several ways to compute it.

        Implementations are registered by the type of the spec. Nodes of an op without specs are
        lowered by `lower` only.
        """
        return ()

    def input_storages(
        self, node: Node, result: Storage, shapes: Sequence[Shape4]
    ) -> Sequence[Storage] | None:
        """Return the storages of inputs within the result for which the node needs no kernel.

        The result is None if the node needs a kernel: see Trait.HOLDS_INPUTS.
        """
        return None

    def result_storage(self, node: Node, source: Storage, shape: Shape4) -> Storage | None:
        """Return the storage of a result within the first input, so that no kernel is needed.

        The result is None if the node needs a kernel: see Trait.VIEWS_INPUT.
        """
        return None

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        """Return the kernel launches of a normalized node."""
        plans = ctx.plans(node)
        if not plans:
            raise CompilationError(
                f"No kernel computes {self.name} here. Use the interpreter without the delegate."
            )
        return [plan.lower(node, ctx) for plan in plans]


class InternalOp(Op):
    """An op whose nodes are created only by other ops and passes, with all shapes known."""

    max_version = 1
    internal = True

    def check(self, graph: Graph, node: Node) -> str:
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return tuple(graph.values[v].shape for v in node.outputs)


_REGISTRY: dict[str, OpFacts] = {}
_UNKNOWN = OpFacts()
_AnyOp = TypeVar("_AnyOp", bound=OpFacts)


def register(op: type[_AnyOp]) -> type[_AnyOp]:
    """Class decorator: register an op under its name."""
    add(op())
    return op


def add(op: OpFacts) -> None:
    """Register an op object, for ops that are generated from a table."""
    _REGISTRY[op.name] = op


_FAMILIES = ("elementwise", "pool_2d", "reduce", "pad", "depth_to_space")
"""Modules that register several ops; each other module has the name of its op."""


_PACKAGE = __name__.rpartition(".")[0]


@cache
def _modules() -> frozenset[str]:
    """Return the names of this package's modules."""
    return frozenset(module.name for module in iter_modules(import_module(_PACKAGE).__path__))


@cache
def _import_ops() -> None:
    """Import every module of this package, so that each registers its ops."""
    for module in sorted(_modules()):
        import_module(f"{_PACKAGE}.{module}")


@cache
def _import_op(name: str) -> None:
    """Import the module that registers an operation; all modules if it is unknown."""
    for module in (name.lower(), *_FAMILIES):
        if module in _modules():
            import_module(f"{_PACKAGE}.{module}")
        if name in _REGISTRY:
            return
    _import_ops()


def facts_of(name: str) -> OpFacts:
    """Return the facts of an op, with or without kernels."""
    found = registered(name)
    if found is None:
        import_plug_ins()
    return _REGISTRY.get(name, _UNKNOWN)


def registered(name: str) -> OpFacts | None:
    """Return the facts registered for an op name, without importing plug-ins."""
    if name not in _REGISTRY:
        _import_op(name)
    return _REGISTRY.get(name)


def has(node: Node, traits: Trait) -> bool:
    """Return whether the op of a node has all of the traits `traits`."""
    return traits in facts_of(node.op).traits


def find(name: str) -> Op | None:
    """Return the op registered under a builtin (or custom) name, if it has kernels."""
    op = facts_of(name)
    return op if isinstance(op, Op) else None


def get(name: str) -> Op:
    """Return the op of an accepted node, or raise KeyError for other nodes."""
    op = find(name)
    if op is None:
        raise KeyError(name)
    return op


def all_facts() -> Iterator[OpFacts]:
    """Yield the facts of all operations, by name, including those without kernels."""
    _import_ops()
    return (op for _, op in sorted(_REGISTRY.items()))


def all_ops() -> Iterator[Op]:
    """Yield every op that has kernels, by name."""
    return (op for op in all_facts() if isinstance(op, Op))


def constant_list(graph: Graph, value_id: int) -> list[Any]:
    """Return a constant's elements as a flat list of Python numbers."""
    found: list[Any] = np.ravel(np.asarray(graph.values[value_id].data)).tolist()
    return found


def as_float32(value: Value) -> npt.NDArray[np.float32]:
    """Return a constant's elements as a float32 array of the constant's shape."""
    if value.data is None:
        raise ValueError(f"value {value.id} ({value.name}) is not a constant")
    if (found := as_dequantized(value.data)) is not None:
        return cast(npt.NDArray[np.float32], found.reshape(value.shape))
    return np.asarray(value.data, dtype=np.float32).reshape(value.shape)
