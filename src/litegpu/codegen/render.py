"""Renders a kernel template (Jinja2) in the portable dialect."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from litegpu.codegen.dialect import PLAIN_LAUNCH, Argument, KernelText, LaunchAttributes
from litegpu.codegen.half_range import with_range_stores
from litegpu.codegen.registers import FLOAT, INT, Register
from litegpu.codegen.sources import templates
from litegpu.codegen.storage import Position, Shape4, TensorRef
from litegpu.errors import OperationError

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True, slots=True)
class EpilogueText:
    """One elementwise op: an expression over `x` and operands, e.g. ``x + b``.

    `expression` has the placeholders {x} and {0}, {1}, … for the operands, and {i} for the indices
    of the elements in the value, in row-major order. `steps` are expressions that are computed
    before; {step[0]}, {step[1]}, … are their results, of the type `register`. The result of a
    `bounded` op is finite and within the range of half. The result has the type `register`.
    `limits` are the bounds of an op that only clamps integers.
    """

    expression: str
    operands: tuple[TensorRef | str, ...]
    bounded: bool = False
    register: Register = FLOAT
    limits: tuple[int, int] | None = None
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Applies the fused ops to a result and stores it: templates call `store`.

    `accumulator` is the register type of the template's result. The type of the last op's result
    must be the register type of `dst`; otherwise, raises ValueError.
    """

    dst: TensorRef
    ops: tuple[EpilogueText, ...]
    accumulator: Register = FLOAT

    def __post_init__(self) -> None:
        """Check that the type of the result is the register type of the stored value."""
        register = self.ops[-1].register if self.ops else self.accumulator
        if register is not self.dst.register:
            raise ValueError(
                f"{self.dst.name} is written from {self.dst.register.type}, "
                f"but the kernel computes {register.type}"
            )

    def store(
        self,
        s: str,
        value: str,
        row: str | None = None,
        n: str = "0",
        y: str = "0",
        x: str = "0",
        ahead: str = "",
    ) -> str:
        """Return statements that finish `value` for channel block `s` at a row, or at (n, y, x).

        `ahead`, with {} for the index of an operand, is the name of the variable that holds this
        operand if `read` loaded it before.
        """
        at = self._position_text(row, n, y, x)
        known = enumerate(self.operands) if ahead else ()
        texts = {ref.name: ahead.format(number) for number, ref in known}
        lines = ["{", f"{self.dst.register.type} result;"]
        lines += self._finish(s, value, "result", at, texts)
        lines += [self.dst.write(at, s, "result", is_bounded(self.ops)), "}"]
        return "\n".join(lines)

    @property
    def operands(self) -> tuple[TensorRef, ...]:
        """The operands that the epilogue reads from memory, each once."""
        found = (ref for each in self.ops for ref in each.operands)
        return tuple(dict.fromkeys(ref for ref in found if isinstance(ref, TensorRef)))

    def read(self, number: int, s: str, row: str) -> str:
        """Return the text that reads operand `number` into a register before `store`."""
        at = self._position_text(row)
        return self.operands[number].read(at, s, self.dst.shape, self.dst.channel_blocks)

    def finish(self, s: str, value: str, result: str, row: str, words: Sequence[str] = ()) -> str:
        """Return statements that apply all ops to `value` and set `result`, of type `finished`.

        `words` are the names of variables that hold `byte_operands` (4 channels each), read before.
        """
        known = zip(self.byte_operands, words, strict=False)
        texts = {ref.name: ref.of_word(word) for ref, word in known}
        return "\n".join(self._finish(s, value, result, self._position_text(row), texts))

    @property
    def byte_operands(self) -> tuple[TensorRef, ...]:
        """The operands of `finish` that have one byte per element of the result."""
        shape = self.dst.shape
        return tuple(ref for ref in self.operands if ref.holds_words and ref.shape == shape)

    def write(self, s: str, result: str, row: str) -> str:
        """Return statements that store the result of `finish`."""
        return self.dst.write(self._position_text(row), s, result, is_bounded(self.ops))

    def _position_text(self, row: str | None, n: str = "0", y: str = "0", x: str = "0") -> Position:
        return Position.of_row(row, self.dst.shape) if row is not None else Position(n, y, x)

    def _finish(
        self, s: str, value: str, result: str, at: Position, texts: Mapping[str, str]
    ) -> list[str]:
        shape, reach = self.dst.shape, self.dst.channel_blocks
        ops = self.ops
        if ops and ops[-1].limits is not None and ops[-1].limits == self.dst.limits_of_stores:
            ops = ops[:-1]
        return apply_epilogue(ops, value, result, at, s, shape, reach, self.accumulator, texts)


def is_bounded(ops: Sequence[EpilogueText]) -> bool:
    """Whether the result of the ops is finite and within the range of half."""
    return bool(ops) and ops[-1].bounded


def apply_epilogue(
    ops: Sequence[EpilogueText],
    value: str,
    result: str,
    at: Position,
    s: str,
    shape: Shape4,
    reach: int,
    accumulator: Register = FLOAT,
    words: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return statements that apply ops to `value` and set `result`, for block `s` of a `shape`.

    `value` has the register type `accumulator`, and `result` has the type of the last op. `reach`
    is the exclusive upper bound of `s`. `words` maps the names of operands that were read before to
    the text of their values.
    """
    registers = [accumulator, *(epilogue_op.register for epilogue_op in ops)]
    # If the type changes, the result of each op gets its own variable.
    alike = len(set(registers)) == 1
    running = result if alike else "result_0"
    lines = [] if running == value else [f"{_declared(accumulator, alike)}{running} = {value};"]
    for number, epilogue_op in enumerate(ops, 1):
        register = epilogue_op.register
        operands = [
            ref if isinstance(ref, str) else words.get(ref.name) or ref.read(at, s, shape, reach)
            for ref in epilogue_op.operands
        ]
        numbers = _numbers(at, s, shape) if "{i}" in epilogue_op.expression else ""
        steps = [f"step_{number}_{k}" for k in range(len(epilogue_op.steps))]
        texts = [
            text.format(*operands, x=running, i=numbers, step=steps)
            for text in (*epilogue_op.steps, epilogue_op.expression)
        ]
        lines += [
            f"{_declared(register)}{name} = {text};"
            for name, text in zip(steps, texts, strict=False)
        ]
        running = result if alike else f"result_{number}"
        lines.append(f"{_declared(register, alike)}{running} = {texts[-1]};")
    if not alike:
        lines.append(f"{result} = {running};")
    own_names = not alike or any(epilogue_op.steps for epilogue_op in ops)
    return ["{", *lines, "}"] if own_names else lines


def _declared(register: Register, known: bool = False) -> str:
    """Return the start of a statement that sets a variable, which may be known before."""
    return "" if known else f"const {register.type} "


def _numbers(at: Position, s: str, shape: Shape4) -> str:
    """Return the text of the row-major indices in a value of the 4 channels of block `s`."""
    _, height, width, channels = shape
    row = at.row or f"((({at.n}) * {height} + ({at.y})) * {width} + ({at.x}))"
    first = f"({row}) * {channels} + ({s}) * 4"
    return INT.call("ADD4", INT.splat(first), INT.call("MAKE4", "0", "1", "2", "3"))


def render(
    template: str,
    variables: Mapping[str, Any],
    tensors: Mapping[str, TensorRef],
    epilogue: Epilogue,
    arguments: tuple[Argument, ...],
    local_size: tuple[int, int, int],
    shared: tuple[tuple[str, str, int], ...] = (),
    inner: tuple[tuple[EpilogueText, ...], tuple[EpilogueText, ...]] = ((), ()),
    groups: int = 1,
    attributes: LaunchAttributes = PLAIN_LAUNCH,
) -> KernelText:
    """Return the kernel; `inner` has epilogue ops on an input that the template computes itself.

    The second element of `inner` has epilogue ops on the value from which the template computes
    that input.

    The rendered kernel is for launches with `groups` work groups.

    The kernel's name ends in a hash of everything that determines its text. The kernel records the
    range of all `tensors` with `noted`, in their order, in an argument named RANGE.

    Raises jinja2.UndefinedError if a template uses an undefined variable.
    """

    def apply_inner(number: int, name: str, s: str, result: str, row: str) -> str:
        shape: Shape4 = variables[name]
        at, reach = Position.of_row(row, shape), -(-shape[3] // 4)
        return "\n".join(apply_epilogue(inner[number], result, result, at, s, shape, reach))

    words = {
        "store": epilogue.store,
        "finish": epilogue.finish,
        "operands": epilogue.operands,
        "read_operand": epilogue.read,
        "byte_operands": epilogue.byte_operands,
        "write": epilogue.write,
        "is_plain": not epilogue.ops,
        "is_bounded": is_bounded(epilogue.ops),
        "finished": epilogue.dst.register.type,
        "inner": partial(apply_inner, 0, "middle"),
        "innermost": partial(apply_inner, 1, "innermost_shape"),
        "inner_is_bounded": is_bounded(inner[0]),
        "at": _position,
        "at_row": _row_of,
    }
    try:
        text = _environment().get_template(f"{template}.jinja")
        body = text.render(**variables, **tensors, **words)
    except Exception as error:
        if template not in _ADDED:
            raise
        raise OperationError(
            f"The template of '{template}' cannot be rendered: {type(error).__name__}: {error}. A "
            f"template can use the words {', '.join([*variables, *tensors])} and store."
        ) from error
    noted = [each.name for each in tensors.values() if isinstance(each, TensorRef) and each.noted]
    if noted:
        body = with_range_stores(body, noted, groups)
    launched = (attributes.cluster_size, attributes.min_blocks)
    key = repr((arguments, local_size, shared, body, launched)).encode()
    name = f"{template.replace('/', '_')}_{hashlib.sha256(key).hexdigest()[:12]}"
    return KernelText(name, arguments, local_size, shared, body, attributes)


def _position(n: str, y: str, x: str) -> Position:
    return Position(n, y, x)


def _row_of(row: str, shape: Shape4) -> Position:
    return Position.of_row(row, shape)


_ADDED: dict[str, str] = {}
"""Texts of users' templates, by template name."""


def add_template(name: str, text: str) -> None:
    """Register a user's template; its name must identify its text.

    Raises jinja2.TemplateSyntaxError if the template is invalid.
    """
    _environment().parse(text)
    _ADDED[name] = text


def _source(name: str) -> tuple[str, str, None] | None:
    added = _ADDED.get(name.removesuffix(".jinja"))
    if added is not None:
        return added, f"<{name}>", None
    path = templates().get(name)
    return None if path is None else (path.read_text(encoding="utf-8"), str(path), None)


_OPTIONS: Mapping[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
    "autoescape": False,
}


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # a start from a stored partition renders nothing

    from litegpu.codegen.compiled_templates import CompiledTemplates

    options = {**_OPTIONS, "undefined": jinja2.StrictUndefined}
    loader = jinja2.FunctionLoader(_source)
    compiled = CompiledTemplates(repr(options))
    return jinja2.Environment(loader=loader, bytecode_cache=compiled, **options)


def compile_templates() -> None:
    """Compile every template, so that the cache of an installation is complete."""
    for name in templates():
        _environment().get_template(name)
