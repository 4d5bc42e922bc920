"""User-defined operations: custom operations of models, computed by users' kernel templates."""

from __future__ import annotations

import hashlib
import inspect
import marshal
import operator
import os
import re
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, TypeVar, overload

import jinja2
import numpy as np
import numpy.typing as npt

from litegpu.codegen import add_template
from litegpu.errors import LitegpuError, OperationError
from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op
from litegpu.ops.common import checks, flexbuffers
from litegpu.ops.common.custom import add_custom
from litegpu.ops.common.units import Unit
from litegpu.runtime_abi.opcodes import BUILTIN_OPS

Shape = tuple[int, ...]
_RESERVED = frozenset(("dst", "store", "at", "at_row"))
"""Template variables that litegpu defines."""
_MARSHAL_BY_VALUE = 2


@dataclass(frozen=True, slots=True)
class CustomTensor:
    """An input of a custom operation: shape, dtype name, and data if the input is constant."""

    shape: Shape
    dtype: str
    data: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class CustomNode:
    """A node of a model with a custom operation.

    `inputs` are the input tensors of the node; an omitted input is None. `custom_options` are the
    bytes in the model file; `version` is the version of the operation.
    """

    inputs: tuple[CustomTensor | None, ...]
    custom_options: bytes
    version: int

    @property
    def options(self) -> Mapping[str, Any]:
        """The custom options as a dict, if they are a FlexBuffers map; empty if there are none.

        Raises ValueError for other bytes, which `custom_options` has.
        """
        return flexbuffers.read_map(self.custom_options) if self.custom_options else {}


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel of a custom operation is launched for a node.

    `variables` are the template variables that depend on the node: numbers, strings and lists.
    `grid` is the number of work items (x, y, z). If `grid` is None, the kernel runs one work item
    for each block of 4 channels (x) and each row (y) of the result. `flops` is the number of
    floating-point operations, for profiles and estimates; None means one operation per element of
    the result. Raises OperationError if a field of the launch has an invalid value.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] | None = None
    flops: int | None = None

    def __post_init__(self) -> None:
        """Check every field of the launch."""
        if not isinstance(self.variables, Mapping):
            raise OperationError(
                f"Launch.variables is a {type(self.variables).__name__}. Use a dict of words."
            )
        for name in self.variables:
            if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
                raise OperationError(
                    f"Launch.variables has {name!r}, which is not an identifier, or is a word of "
                    f"litegpu's templates: {', '.join(sorted(_RESERVED))}. Use another name."
                )
        if self.grid is not None and not _are_sizes(self.grid, 3):
            raise OperationError(
                f"Launch.grid is {self.grid!r}. Use three whole numbers from 1 on, or None."
            )
        if self.flops is not None and not _are_sizes((self.flops,), 1):
            raise OperationError(
                f"Launch.flops is {self.flops!r}. Use a whole number from 1 on, or None."
            )


class CustomOp(ABC):
    """A custom operation on floats with one result, computed by a kernel template.

    Derive a class from CustomOp, and register the class with `register_op`. docs/custom_ops.md has
    an example of a custom operation.
    """

    name: ClassVar[str]
    """The operation's custom code in model files."""
    template: ClassVar[str | os.PathLike[str]]
    """The kernel template: the path of a file, or the text of the template if it has several lines.
    """
    reads: ClassVar[tuple[str, ...]] = ("src",)
    """The names that the template uses for the inputs, one for each input."""
    max_version: ClassVar[int] = 1
    """The highest supported version of the operation."""
    revision: ClassVar[str | int] = 0
    """Revision of the code that the class imports from other modules: change it when that code
    changes; otherwise litegpu loads outdated compiled partitions from caches.

    litegpu detects changes of the module of the class, and of the template.
    """

    def check(self, node: CustomNode) -> str:
        """Return why this node cannot run on the GPU, or an empty text when it can."""
        return ""

    def infer(self, node: CustomNode) -> Shape:
        """Return the shape of the result; by default, the shape of the first input."""
        first = node.inputs[0]
        return first.shape if first is not None else ()

    def launch(self, node: CustomNode) -> Launch:
        """Return how the kernel is launched for a node that `check` has accepted."""
        return Launch()


_AnyOp = TypeVar("_AnyOp", bound=type[CustomOp])


@overload
def register_op(op: _AnyOp, *, replace: bool = False) -> _AnyOp: ...


@overload
def register_op(op: None = None, *, replace: bool = False) -> Callable[[_AnyOp], _AnyOp]: ...


def register_op(op: _AnyOp | None = None, *, replace: bool = False) -> Any:
    """Register a custom operation for all delegates that are applied later.

    `register_op` is a class decorator, or a function that receives a class:

        @litegpu.register_op
        class Mish(litegpu.CustomOp):
            name, template = "Mish", "mish.jinja"

    If `replace` is True, the class replaces an operation of the same name that was registered
    before, for example when a notebook cell runs again. Installed packages register their
    operations by an entry point of the group "litegpu.ops", which names the module or the class.

    Raises OperationError if the name is already registered, if the template is missing or invalid,
    or if the object is not a subclass of CustomOp.
    """
    if op is None:
        return lambda later: register_op(later, replace=replace)
    if not (isinstance(op, type) and issubclass(op, CustomOp)):
        raise OperationError(
            f"{op!r} is not a subclass of litegpu.CustomOp. Derive it from that class."
        )
    name = getattr(op, "name", None)
    if not isinstance(name, str) or not name:
        raise OperationError(
            f"{op.__name__}.name is {name!r}. Use the operation's custom code in model files."
        )
    words = op.reads
    if not isinstance(words, tuple) or not words or len({*words}) < len(words):
        raise OperationError(
            f"{op.__name__}.reads is {words!r}. Use a tuple of different names, one for each input."
        )
    for word in words:
        if not isinstance(word, str) or not word.isidentifier() or word in _RESERVED:
            raise OperationError(
                f"{op.__name__}.reads has {word!r}, which is not an identifier, or is a word of "
                f"litegpu's templates: {', '.join(sorted(_RESERVED))}. Use another one."
            )
    text = _text_of(op)
    digest = hashlib.sha256(f"{text}\0{op.revision}\0{_code_of(op)}".encode()).hexdigest()
    stem = re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_")
    template = f"custom/{stem}_{digest[:12]}"
    try:
        add_template(template, text)
    except jinja2.TemplateSyntaxError as error:
        raise OperationError(
            f"The template of '{name}' cannot be read: line {error.lineno}: {error.message}. "
            "Templates use the syntax of Jinja2."
        ) from error
    clash = (
        ("the runtime has a built-in operation of this name. Use another name.")
        if name in BUILTIN_OPS.values()
        else ""
    )
    if clash := clash or add_custom(_Adapter(op(), template, digest), replace):
        raise OperationError(f"There is an operation '{name}' already: {clash}")
    return op


def _text_of(op: type[CustomOp]) -> str:
    """Return the text of a class's template. Raises OperationError if the template is missing."""
    template = getattr(op, "template", None)
    if isinstance(template, str) and "\n" in template:
        return template
    if not isinstance(template, str | os.PathLike) or not os.fspath(template):
        raise OperationError(
            f"{op.__name__}.template is {template!r}. Use a path, or a text of several lines."
        )
    path = Path(template)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise OperationError(
            f"The template of '{op.name}' cannot be read: {path}: {why}. A path is taken from the "
            "current folder: use Path(__file__).with_name(...) for a file next to the module."
        ) from error


def _code_of(op: type[CustomOp]) -> str:
    """Return a digest of the code that determines a class's kernels: its module or its own code."""
    found = hashlib.sha256()
    for each in op.__mro__[: op.__mro__.index(CustomOp)]:
        try:
            found.update(Path(str(inspect.getsourcefile(each))).read_bytes())
        except (OSError, TypeError):  # a class of a notebook, or of `python -c`
            for name, value in sorted(vars(each).items()):
                if isinstance(value, FunctionType):
                    found.update(marshal.dumps(value.__code__, _MARSHAL_BY_VALUE))
                elif not name.startswith("__"):
                    found.update(f"{name}={value!r}".encode())
    return found.hexdigest()


def _are_sizes(values: Any, count: int) -> bool:
    try:
        sizes = [operator.index(value) for value in values]
    except TypeError:
        return False
    return len(sizes) == count and min(sizes) >= 1


@dataclass(frozen=True, slots=True)
class _Plan:
    """A launch of a custom operation as attributes of a node: plain data to compare and print."""

    variables: tuple[tuple[str, Any], ...]
    grid: tuple[int, int, int] | None
    flops: int | None


class _Adapter(Op):
    """Makes a user's operation available as an Op of litegpu."""

    def __init__(self, own: CustomOp, template: str, code: str) -> None:
        self.name = own.name  # type: ignore[misc]
        self.max_version = own.max_version  # type: ignore[misc]
        self.code = code  # type: ignore[misc]
        self._own, self._template = own, template

    def check(self, graph: Graph, node: Node) -> str:
        reads = len(self._own.reads)
        reason = checks.first_of(
            checks.input_count(node, reads, reads),
            checks.constants(graph, node, "The operand"),
        )
        if reason:
            return reason
        if len(node.outputs) != 1:
            return f"The node has {len(node.outputs)} outputs, but a CustomOp has one."
        found = self._call(self._own.check, graph, node)
        if not isinstance(found, str):
            raise self._wrong("check", f"returned {found!r}. Return a reason, or an empty text.")
        return found

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        found = self._call(self._own.infer, graph, node)
        try:
            shape = tuple(map(operator.index, found))
        except TypeError:
            text = f"returned {found!r}. Return a shape: a tuple of whole numbers."
            raise self._wrong("infer", text) from None
        return (shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        launch = self._call(self._own.launch, graph, node)
        if not isinstance(launch, Launch):
            raise self._wrong("launch", f"returned {launch!r}. Return a litegpu.Launch.")
        if common := {*launch.variables} & {*self._own.reads}:
            text = f"has variables with names of inputs, {sorted(common)}. Use other names."
            raise self._wrong("launch", text)
        plan = _Plan(tuple(launch.variables.items()), launch.grid, launch.flops)
        return (replace(node, attributes=plan),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        plan: _Plan = node.attributes
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template=self._template,
            grid=plan.grid or (dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads=dict(zip(self._own.reads, node.inputs, strict=True)),
            variables=dict(plan.variables),
            work={Unit.FP32: plan.flops or dst.rows * dst.channels},
        )
        return (request,)

    def _call(self, method: Callable[[CustomNode], Any], graph: Graph, node: Node) -> Any:
        """Call a user's method.

        Raises OperationError for any exception that the user's method raises.
        """
        inputs = tuple(_tensor_of(graph, v) for v in node.inputs)
        try:
            return method(CustomNode(inputs, node.custom, node.version))
        except LitegpuError:
            raise
        except Exception as error:
            text = f"failed for node {node.index}: {type(error).__name__}: {error}"
            raise self._wrong(method.__name__, text) from error

    def _wrong(self, method: str, what: str) -> OperationError:
        return OperationError(f"{type(self._own).__name__}.{method}() of '{self.name}' {what}")


def _tensor_of(graph: Graph, v: int) -> CustomTensor | None:
    if v == ABSENT:
        return None
    value = graph.values[v]
    data = None if value.data is None else np.asarray(value.data).reshape(value.shape)
    return CustomTensor(value.shape, value.dtype.value, data)
