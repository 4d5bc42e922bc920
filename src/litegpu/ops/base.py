"""What every operation provides: can it run, which shape comes out, and which kernels run it."""

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


class NewValue(Protocol):
    """Makes a fresh intermediate, or a constant if there is data, and returns its id.

    Without a `dtype` it has the type of the node's first result, or of the data. A `precise` one is
    never stored as half.
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
"""The op of a node that only carries an epilogue (or slices and pads): see ops/copy.py."""


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """One kernel launch that an op asks for.

    `grid` is in work items (rounded up to `local` by the engine, which chooses it where there is
    none). `reads` and `output` are value ids by the template's names; `parts` is a list of inputs
    the template loops over. `constants` are packed arrays, read 4 elements at a time. `work` counts
    what must be computed, once.
    """

    template: str
    grid: tuple[int, int, int]
    output: int
    local: tuple[int, int, int] | None = None
    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    """Further values that the kernel makes, by the template's names."""
    parts: tuple[int, ...] = ()
    constants: Mapping[str, npt.NDArray[Any] | LazyArray] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    shared: tuple[tuple[str, str, int], ...] = ()
    attributes: LaunchAttributes = PLAIN_LAUNCH
    destination: Storage | None = None
    """Where to write, when it is not the whole of `output` (one part of a concatenation)."""
    inner_epilogue: tuple[EpilogueOp, ...] = ()
    """Steps that the template applies to an operand it computes itself, by calling `inner`."""
    innermost_epilogue: tuple[EpilogueOp, ...] = ()
    """The same for what that operand is computed from in turn, by calling `innermost`."""
    work: Operations = field(default_factory=dict)
    needed: Mapping[str, int] = field(default_factory=dict)
    """Elements that are needed of a value in `reads`, where these may be fewer than all."""
    products: int = 1
    """Products on matrix units that make one of values, where these are split into parts."""
    accumulator: Register = FLOAT
    """What the template has its result in."""


class Target(Protocol):
    """The facts about a device, and the numeric policy, that a choice of kernel may depend on."""

    @property
    def policy(self) -> NumericPolicy:
        """What may be rounded, and from which size on."""
        ...

    @property
    def backend(self) -> str:
        """The name of the API that the device is used through, as "cuda"."""
        ...

    @property
    def max_work_group_size(self) -> int: ...

    @property
    def max_shared_items(self) -> int:
        """Work items that may share memory and wait for each other."""
        ...

    @property
    def local_memory_bytes(self) -> int:
        """Memory that the items of a work group may share; 0 where it cannot be used."""
        ...

    @property
    def max_arguments(self) -> int:
        """Buffers that one kernel may use."""
        ...

    @property
    def parallel_items(self) -> int:
        """Work items that keep the device busy."""
        ...

    @property
    def compute_units(self) -> int: ...

    @property
    def model(self) -> DeviceModel:
        """The architecture: what a multiprocessor holds, and what only some of them can do."""
        ...

    def failure(self, implementation: str, spec: Any, *, general: bool) -> str:
        """Return why an implementation is not to compute a spec on this device any more, or ""."""
        ...


class SpecContext(Protocol):
    """What an op may ask while it says what is to be computed."""

    @property
    def target(self) -> Target: ...

    def value(self, value_id: int) -> Value: ...

    def storage(self, value_id: int) -> Storage: ...


class Lowerable(Protocol):
    """What was selected to compute a spec: see kernels/base.py."""

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest: ...


class LowerContext(SpecContext, Protocol):
    """What an op may ask while it chooses its kernels."""

    def plans(self, node: Node) -> Sequence[Lowerable]:
        """Return what was selected for each of the node's specs."""
        ...

    def choose(self, problem: Hashable, candidates: Sequence[_T]) -> _T:
        """Return one of some ways to do the same: the first, or what measuring found faster.

        `candidates`, at least one, are sorted: the best by the op's own estimate comes first.
        `problem` is plain data that decides about them and about their times; its text is kept.
        """
        ...


@dataclass(frozen=True, slots=True)
class Values:
    """The values that an attribute may have; others leave the node to the CPU.

    `allowed` lists them, or all from `least` on are handled. What depends on the node's operands
    is said in words, `about`. Without any of these, all values are handled.
    """

    allowed: tuple[Any, ...] = ()
    least: int | None = None
    about: str = ""
    wrong: tuple[Any, ...] = field(default=())
    """Some that are not handled, for tests."""

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
    """How quantized nodes of an operation are computed as the CPU does, to the last bit."""

    @abstractmethod
    def check(self, graph: Graph, node: Node) -> str:
        """Return why this node cannot run on the GPU, or an empty text when it can."""

    @abstractmethod
    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Return the nodes that compute it in integers; what they make are stored integers."""


class Op(OpFacts, ABC):
    """An operation that has kernels. Subclasses are registered by `register`."""

    max_version: ClassVar[int]
    quantized_version: ClassVar[int] = 0
    """The highest version that just quantized tensors bring, if it is above `max_version`."""
    internal: ClassVar[bool] = False
    """Whether only litegpu itself makes such nodes, and no model holds one."""

    takes: ClassVar[tuple[Types, ...]] = (FLOATS,)
    """What each computed input may hold; the last entry is that of all further inputs."""
    gives: ClassVar[Types | None] = FLOATS
    """What the outputs may hold; None: the type of the inputs that are taken as `STORABLE`."""
    exact: ClassVar[Exact | None] = None
    """How nodes of quantized tensors are computed; None: they stay on the CPU."""
    accepts: ClassVar[Mapping[str, Values]] = {}
    """The values of attributes that are handled, where they are not the usual ones."""

    @abstractmethod
    def check(self, graph: Graph, node: Node) -> str:
        """Return why this node cannot run on the GPU, or an empty text when it can."""

    @abstractmethod
    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        """Return the output shapes that follow from the input shapes of a checked node."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Return the node with its attributes worked out, or the nodes that replace it."""
        return (node,)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[Any]:
        """Return what a normalized node is to compute, where there are several ways to do it.

        The kinds of spec are those that implementations are registered for. Without any, `lower`
        knows the only way.
        """
        return ()

    def input_storages(
        self, node: Node, result: Storage, shapes: Sequence[Shape4]
    ) -> Sequence[Storage] | None:
        """Return where inputs of these shapes lie in the result, if the node then takes no kernel.

        None where a kernel is needed anyway: see Trait.HOLDS_INPUTS.
        """
        return None

    def result_storage(self, node: Node, source: Storage, shape: Shape4) -> Storage | None:
        """Return where a result of this shape lies in the first input, so that no kernel is needed.

        None where it cannot: see Trait.LIES_IN_INPUT.
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
    """An op whose nodes only other ops and passes make, with everything known about them."""

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
    """Class decorator: make an op known under its name."""
    add(op())
    return op


def add(op: OpFacts) -> None:
    """Make one op object known (for ops that come from a table)."""
    _REGISTRY[op.name] = op


@cache
def _import_ops() -> None:
    """Import every module of this package, so that each registers its ops."""
    package = __name__.rpartition(".")[0]
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


def facts_of(name: str) -> OpFacts:
    """Return what is known of an operation, whether it has kernels or not."""
    _import_ops()
    if name not in _REGISTRY:
        import_plug_ins()
    return _REGISTRY.get(name, _UNKNOWN)


def registered(name: str) -> OpFacts | None:
    """Return what was registered under a name, by litegpu or by users, before plug-ins are."""
    _import_ops()
    return _REGISTRY.get(name)


def has(node: Node, traits: Trait) -> bool:
    """Return whether the operation of a node has all of some traits."""
    return traits in facts_of(node.op).traits


def find(name: str) -> Op | None:
    """Return the op registered under a builtin (or custom) name, if it has kernels."""
    op = facts_of(name)
    return op if isinstance(op, Op) else None


def get(name: str) -> Op:
    """Return the op of a node that was accepted; for others this is a KeyError."""
    op = find(name)
    if op is None:
        raise KeyError(name)
    return op


def all_facts() -> Iterator[OpFacts]:
    """Yield all that is known of operations, by name, of those without kernels, too."""
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
