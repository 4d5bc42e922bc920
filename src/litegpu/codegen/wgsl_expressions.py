"""Translates expressions of the C-like dialect to WGSL, which has no implicit conversions."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from litegpu.codegen.macros import TranslationError
from litegpu.codegen.wgsl_builtins import builtin, construct
from litegpu.codegen.wgsl_names import renamed
from litegpu.codegen.wgsl_types import (
    BOOL,
    INT,
    TYPES,
    UINT,
    Type,
    Value,
    convert,
    joint_kind,
    joint_size,
    type_text,
)


class Signature(NamedTuple):
    """The types of the parameters and of the result of a function."""

    result: Type
    parameters: tuple[Type, ...]


class Symbols(NamedTuple):
    """The names that kernel texts may use in addition to their own variables."""

    variables: Mapping[str, Value]
    functions: Mapping[str, Signature]
    structs: Mapping[str, Mapping[str, Type]]
    types: Mapping[str, Type]


_LEVELS = (
    *(("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">=")),
    *(("<<", ">>"), ("+", "-"), ("*", "/", "%")),
)
_PRECEDENCE = {name: level for level, names in enumerate(_LEVELS, 1) for name in names}
_END = ("",) * 4
"""Empty tokens after the last token, one for each token that the parser looks ahead."""
_LOGICAL, _COMPARED, _SHIFTS, _BITS = {"||", "&&"}, 6, {"<<", ">>"}, {"|", "^", "&"}


class Expressions:
    """Parses expressions from tokens; statements that must precede an expression go to `lines`."""

    def __init__(self, tokens: Sequence[str], symbols: Symbols) -> None:
        """Start to parse at the first token."""
        self.tokens = [*tokens, *_END]
        self.at = 0
        self.symbols = symbols
        self.scope: ChainMap[str, Value] = ChainMap({}, dict(symbols.variables))
        self.lines: list[str] = []
        """The translated statements that precede the current expression."""
        self.called: set[str] = set()
        """The functions of `symbols` that the expressions call."""
        self._temporaries = 0

    # Tokens

    def take(self) -> str:
        """Return the next token and advance."""
        token = self.tokens[self.at]
        self.at += bool(token)
        return token

    def accept(self, token: str) -> bool:
        """Return whether the next token is `token`; advance if the tokens are equal."""
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        """Skip the next token, which must be `token`.

        Raises TranslationError if the next token is a different one.
        """
        if not self.accept(token):
            near = " ".join(self.tokens[max(self.at - 4, 0) : self.at + 4])
            raise TranslationError(f"Expected '{token}' near '{near}'.")

    # Statements that precede an expression

    def aside(self) -> list[str]:
        """Start a new list of lines, and return the previous list."""
        lines, self.lines = self.lines, []
        return lines

    def back(self, lines: list[str]) -> list[str]:
        """Continue an earlier list of lines, and return the lines written since."""
        found, self.lines = self.lines, lines
        return found

    def _temporary(self, kind: Type) -> str:
        self._temporaries += 1
        name = f"chosen_{self._temporaries}"
        self.lines.append(f"var {name}: {type_text(kind)};")
        return name

    # Expressions

    def expression(self) -> Value:
        """Parse the next expression and return its translation.

        Raises TranslationError if the dialect has no such expression.
        """
        condition = self._binary(1)
        if self.tokens[self.at] != "?":
            return condition
        self.at += 1
        condition = convert(condition, BOOL)
        before = self.aside()
        yes = self.expression()
        yes_lines = self.back(before)
        self.expect(":")
        before = self.aside()
        no = self.expression()
        no_lines = self.back(before)
        joint = yes.type
        if yes.type != no.type:
            joint = Type(joint_kind(yes, no), joint_size(yes, no))
            yes, no = convert(yes, joint), convert(no, joint)
        lasting = yes.lasting or no.lasting or yes_lines or no_lines or not joint.size
        if not lasting:
            text = f"select({no.text}, {yes.text}, {condition.text})"
            return Value(text, joint, True, condition.lasting)
        name = self._temporary(joint)
        self.lines += [f"if ({condition.text}) {{", *yes_lines, f"{name} = {yes.text};", "} else {"]
        self.lines += [*no_lines, f"{name} = {no.text};", "}"]
        return Value(name, joint)

    def _binary(self, least: int) -> Value:
        left = self._unary()
        while True:
            name = self.tokens[self.at]
            level = _PRECEDENCE.get(name, 0)
            if level < least or not level:
                return left
            self.at += 1
            if name in _LOGICAL:
                left = self._logical(left, name, level)
            else:
                left = self._joined(left, name, self._binary(level + 1))

    def _logical(self, left: Value, name: str, level: int) -> Value:
        """Return a logical operation; the shader evaluates the right side only if necessary."""
        before = self.aside()
        right = convert(self._binary(level + 1), BOOL)
        lines = self.back(before)
        left = convert(left, BOOL)
        if not lines and not right.lasting:
            return Value(f"{left.operand} {name} {right.operand}", BOOL, False, left.lasting)
        found = self._temporary(BOOL)
        self.lines.append(f"{found} = {left.text};")
        undecided = found if name == "&&" else f"!{found}"
        self.lines += [f"if ({undecided}) {{", *lines, f"{found} = {right.text};", "}"]
        return Value(found, BOOL)

    def _joined(self, left: Value, name: str, right: Value) -> Value:
        size = joint_size(left, right)
        lasting = left.lasting or right.lasting
        if name == "<<" and left.text[-1] == "i" and (shifted := _shifted(left, right)):
            return shifted
        if name in _SHIFTS:
            left = convert(left, Type(left.type.kind, size))
            right = convert(right, Type("u32", size))
            return Value(f"{left.operand} {name} {right.operand}", left.type, False, lasting)
        kind = joint_kind(left, right)
        if name in _BITS:
            left, right = convert(left, Type(kind, size)), convert(right, Type(kind, size))
        else:
            left = convert(left, Type(kind, left.type.size))
            right = convert(right, Type(kind, right.type.size))
        compared = _PRECEDENCE[name] in (_COMPARED, _COMPARED + 1)
        result = Type("bool" if compared else kind, size)
        return Value(f"{left.operand} {name} {right.operand}", result, False, lasting)

    def _unary(self) -> Value:
        token = self.tokens[self.at]
        if token in ("-", "!", "~", "+"):
            self.at += 1
            value = self._unary()
            if token == "+":
                return value
            if token == "!":
                value = convert(value, BOOL)
            return Value(f"{token}{value.operand}", value.type, False, value.lasting)
        return self._postfix(self._primary())

    def _postfix(self, value: Value) -> Value:
        while True:
            if self.accept("["):
                index = self.expression()
                self.expect("]")
                if index.type not in (INT, UINT):
                    raise TranslationError(f"{index.text} is not an index.")
                element = value.type.element
                lasting = value.lasting or (value.type.length is not None)
                value = Value(f"{value.operand}[{index.text}]", element, True, lasting)
            elif self.accept("."):
                value = self._member(value, self.take())
            else:
                return value

    def _member(self, value: Value, name: str) -> Value:
        members = self.symbols.structs.get(value.type.kind)
        if members is not None:
            kind = members.get(name)
        elif set(name) <= set("xyzw"[: value.type.size]) and value.type.size > 1:
            kind = Type(value.type.kind, len(name))
        else:
            kind = None
        if kind is None or value.type.length is not None:
            raise TranslationError(f"{value.text} has no member '{name}'.")
        return Value(f"{value.operand}.{name}", kind, True, value.lasting)

    def _primary(self) -> Value:
        token = self.take()
        if token == "(":
            value = self.expression()
            self.expect(")")
            return value
        found = self.scope.get(token)
        if found is not None:
            return found
        if token[:1].isdigit() or token[:1] == ".":
            return _number(token)
        if token in ("true", "false"):
            return Value(token, BOOL)
        if self.accept("("):
            return self._call(token)
        raise TranslationError(f"The name '{token}' is not defined.")

    def _call(self, name: str) -> Value:
        values: list[Value] = []
        if not self.accept(")"):
            values.append(self.expression())
            while self.accept(","):
                values.append(self.expression())
            self.expect(")")
        kind = self.symbols.types.get(name)
        if kind is not None:
            members = self.symbols.structs.get(name)
            return construct(kind, values) if members is None else _struct(kind, members, values)
        value = builtin(name, values)
        if value is not None:
            return value
        signature = self.symbols.functions.get(name)
        if signature is None:
            raise TranslationError(f"There is no function '{name}'.")
        if len(values) != len(signature.parameters):
            raise TranslationError(f"'{name}' does not take {len(values)} arguments.")
        self.called.add(name)
        pairs = zip(values, signature.parameters, strict=True)
        arguments = ", ".join(convert(*pair).text for pair in pairs)
        return Value(f"{renamed(name)}({arguments})", signature.result, True, True)


def _struct(kind: Type, members: Mapping[str, Type], values: Sequence[Value]) -> Value:
    if len(values) != len(members):
        raise TranslationError(f"{kind.kind} cannot be constructed from {len(values)} values.")
    pairs = zip(values, members.values(), strict=True)
    text = ", ".join(convert(*pair).text for pair in pairs)
    return Value(f"{kind.kind}({text})", kind, True, any(value.lasting for value in values))


def _shifted(left: Value, right: Value) -> Value | None:
    """Return a literal shifted by a literal as a number: WGSL constants must not lose bits."""
    if not (left.text[:-1].isdigit() and right.text[:-1].isdigit()):
        return None
    number = int(left.text[:-1]) << (int(right.text[:-1]) & 31) & 0xFFFFFFFF
    number -= (number & 0x80000000) << 1
    return Value(f"{number}i", INT) if number >= 0 else Value(f"{number + 1}i - 1i", INT, False)


def _number(token: str) -> Value:
    if token[:2] in ("0x", "0X"):
        unsigned = token[-1] in "uU"
        number = int(token.rstrip("uU"), 16)
        return Value(f"{number}{'u' if unsigned else 'i'}", UINT if unsigned else INT)
    if token.isdigit():
        return Value(f"{int(token)}i", INT)
    if token[-1] in "uU":
        return Value(f"{token[:-1]}u", UINT)
    return Value(f"{token.rstrip('fF')}f", TYPES["float"])
