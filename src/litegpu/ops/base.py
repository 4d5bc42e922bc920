"""The interface of operations: whether they can run, their output shapes, and their kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.codegen import FLOAT, PLAIN_LAUNCH, LaunchAttributes, Register, Storage
from litegpu.codegen.storage import Shape4
from litegpu.device_model import DeviceModel
from litegpu.errors import CompilationError
from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.numeric_policy import NumericPolicy
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
    """Slices of a value: for each output a range per axis; outputs may lack axes of size 1."""

    source: int
    ranges: tuple[Sequence[range], ...]


class NewValue(Protocol):
    """Creates an intermediate value, or a constant if there is `data`, and returns its id.

    Without a `dtype`, the value has the type of the node's first result, or of the data. A
    `precise` value is never stored as half.
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

    `grid` is in work items; the engine rounds it up to `local`, which it also selects if there is
    none. `reads` and `output` map the template's names to value ids; `parts` is a list of inputs
    that the template loops over. `constants` are packed arrays, read 4 elements at a time. `work`
    is the minimum number of operations.
    """

    template: str
    grid: tuple[int, int, int]
    output: int
    local: tuple[int, int, int] | None = None
    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    """Further outputs of the kernel: value ids by the template's names."""
    parts: tuple[int, ...] = ()
    constants: Mapping[str, npt.NDArray[Any] | LazyArray] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    shared: tuple[tuple[str, str, int], ...] = ()
    attributes: LaunchAttributes = PLAIN_LAUNCH
    destination: Storage | None = None
    """The storage of the output, if it is only a part of `output` (of a concatenation)."""
    inner_epilogue: tuple[EpilogueOp, ...] = ()
    """Epilogue ops that the template applies to an operand it computes itself, by calling `inner`.
    """
    innermost_epilogue: tuple[EpilogueOp, ...] = ()
    """The same for the value from which that operand is computed, by calling `innermost`."""
    work: Operations = field(default_factory=dict)
    needed: Mapping[str, int] = field(default_factory=dict)
    """Number of elements that are read of a value in `reads`, if not all."""
    written: int | None = None
    """Number of elements that are written of the output, if not all."""
    products: int = 1
    """Number of matrix-unit products per product of values; above 1 if values are split."""
    accumulator: Register = FLOAT
    """The register type of the template's result."""


class Target(Protocol):
    """The properties of a device and the numeric policy on which kernel selection may depend."""

    @property
    def policy(self) -> NumericPolicy:
        """The numeric policy: what may be rounded, and from which size on."""
        ...

    @property
    def backend(self) -> str:
        """The name of the device's API, such as "cuda"."""
        ...

    @property
    def max_work_group_size(self) -> int:
        """Maximum number of work items that can share memory and synchronize."""
        ...

    @property
    def local_memory_bytes(self) -> int:
        """Memory that the items of a work group can share; 0 if it cannot be used."""
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
        """Whether the memory of a work group is faster than the cache."""
        ...

    @property
    def model(self) -> DeviceModel:
        """The architecture: the resources of a multiprocessor, and optional features."""
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
        """Return one of several candidates: the first, or the fastest one by measurement.

        `candidates`, at least one, are sorted: the best by the op's own estimate comes first.
        `problem` is plain data that determines them and their times; its text is stored.
        """
        ...


@dataclass(frozen=True, slots=True)
class Values:
    """The supported values of an attribute; with others, a node stays on the CPU.

    `allowed` lists them; with `least`, all numbers from there on are supported. `about` describes
    restrictions that depend on the node's operands. Without any of these, all values are supported.
    """

    allowed: tuple[Any, ...] = ()
    least: int | None = None
    about: str = ""
    wrong: tuple[Any, ...] = field(default=())
    """Some unsupported values, for tests."""

    def __str__(self) -> str:
        if self.allowed:
            return ", ".join(map(str, self.allowed))
        if self.least is not None:
            return f"≥ {self.least}"
        return self.about or "any"


def one_of(*allowed: Any, wrong: tuple[Any, ...] = ()) -> Values:
    """Return the rule for an attribute with a few values."""
    return Values(allowed=allowed, wrong=wrong)


class Exact(ABC):
    """The bit-exact implementation of an operation's quantized nodes."""

    @abstractmethod
    def check(self, graph: Graph, node: Node) -> str:
        """Return why this node cannot run on the GPU, or an empty text if it can."""

    @abstractmethod
    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Return the nodes that compute it in integers; their results are stored integers."""


class Op(OpFacts, ABC):
    """An operation that has kernels. Subclasses are registered by `register`."""

    max_version: ClassVar[int]
    internal: ClassVar[bool] = False
    """Whether only litegpu creates such nodes, so that no model file contains one."""

    takes: ClassVar[tuple[Types, ...]] = (FLOATS,)
    """The supported types of each computed input; the last entry is that of all further inputs."""
    gives: ClassVar[Types | None] = FLOATS
    """The types of the outputs; None: the type of the inputs that are `STORABLE`."""
    exact: ClassVar[Exact | None] = None
    """How nodes of quantized tensors are computed; None: they stay on the CPU."""
    accepts: ClassVar[Mapping[str, Values]] = {}
    """The supported values of attributes, if they are not the usual ones."""

    @abstractmethod
    def check(self, graph: Graph, node: Node) -> str:
        """Return why this node cannot run on the GPU, or an empty text if it can."""

    @abstractmethod
    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        """Return the output shapes of a checked node, which follow from its input shapes."""

    def cuts(self, graph: Graph, node: Node) -> Cuts | None:
        """Return the slices that the outputs of a checked node are; None for other operations."""
        return None

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Return the node with its attributes resolved, or the nodes that replace it."""
        return (node,)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[Any]:
        """Return the specs of a normalized node, if there are several ways to compute it.

        Implementations are registered by the type of spec. If there are no specs, `lower` is the
        only way.
        """
        return ()

    def input_storages(
        self, node: Node, result: Storage, shapes: Sequence[Shape4]
    ) -> Sequence[Storage] | None:
        """Return the storages of inputs within the result for which the node needs no kernel.

        None if the node needs a kernel anyway: see Trait.HOLDS_INPUTS.
        """
        return None

    def result_storage(self, node: Node, source: Storage, shape: Shape4) -> Storage | None:
        """Return the storage of a result within the first input, so that no kernel is needed.

        None if that is impossible: see Trait.LIES_IN_INPUT.
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
    """Register one op object (for ops that come from a table)."""
    _REGISTRY[op.name] = op


_FAMILIES = ("elementwise", "pool_2d", "reduce", "pad", "depth_to_space")
"""Modules with several common operations; other modules have the name of their operation."""


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
    """Return the facts of an operation, whether it has kernels or not."""
    found = registered(name)
    if found is None:
        import_plug_ins()
    return _REGISTRY.get(name, _UNKNOWN)


def registered(name: str) -> OpFacts | None:
    """Return the facts registered under a name, without importing plug-ins."""
    if name not in _REGISTRY:
        _import_op(name)
    return _REGISTRY.get(name)


def has(node: Node, traits: Trait) -> bool:
    """Return whether the operation of a node has all the given traits."""
    return traits in facts_of(node.op).traits


def find(name: str) -> Op | None:
    """Return the op registered under a builtin (or custom) name, if it has kernels."""
    op = facts_of(name)
    return op if isinstance(op, Op) else None


def get(name: str) -> Op:
    """Return the op of an accepted node; raises KeyError for others."""
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
    """Return a constant's elements as float32, in its own shape."""
    if value.data is None:
        raise ValueError(f"value {value.id} ({value.name}) is not a constant")
    return np.asarray(value.data, dtype=np.float32).reshape(value.shape)
