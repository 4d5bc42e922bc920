"""Translates statements of the C-like dialect to WGSL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from litegpu.codegen.macros import TranslationError
from litegpu.codegen.wgsl_expressions import Expressions, Symbols
from litegpu.codegen.wgsl_names import renamed
from litegpu.codegen.wgsl_types import (
    BOOL,
    VOID,
    Type,
    Value,
    convert,
    type_text,
)

_ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="))
_STEPS = frozenset(("++", "--"))


class Statements(Expressions):
    """Translates the statements of one function and writes them to `lines`."""

    def __init__(self, tokens: Sequence[str], symbols: Symbols, result: Type = VOID) -> None:
        """Start at the first token inside the braces of a function with result type `result`."""
        super().__init__(tokens, symbols)
        self._result = result

    def body(self) -> str:
        """Return all translated statements of the function.

        Raises TranslationError for statements that the dialect does not have.
        """
        while self.tokens[self.at]:
            self._statement()
        return "\n".join(_indented(self.lines))

    def parameter(self, name: str, kind: Type) -> str:
        """Declare a parameter; return its name in the function's head, where it is immutable."""
        text = renamed(name)
        self.scope[name] = Value(text, kind)
        if not self._is_assigned(name):
            return text
        self.lines.append(f"var {text} = given_{text};")
        return f"given_{text}"

    def _is_assigned(self, name: str) -> bool:
        for i, token in enumerate(self.tokens):
            if token == name:
                member = self.tokens[i + 1] == "."
                following = self.tokens[i + 3 if member else i + 1]
                if following in _ASSIGNMENTS or following in _STEPS or self.tokens[i - 1] in _STEPS:
                    return True
        return False

    def _statement(self) -> None:
        token = self.tokens[self.at]
        if token == "{":
            self.lines.append("{")
            self._inside()
            self.lines.append("}")
        elif token == "if":
            self.at += 1
            self._if()
        elif token == "for":
            self.at += 1
            self._for()
        elif token == "while":
            self.at += 1
            self.expect("(")
            self._loop([])
        elif token == "do":
            self.at += 1
            self._do()
        elif token in ("return", "break", "continue"):
            self.at += 1
            self._leave(token)
        elif token == ";":
            self.at += 1
        else:
            self._simple()
            self.expect(";")

    def _enter(self) -> None:
        self.scope = self.scope.new_child()

    def _exit(self) -> None:
        self.scope = self.scope.parents

    def _inside(self) -> None:
        """Translate a statement whose enclosing braces are already written."""
        self._enter()
        if self.accept("{"):
            while not self.accept("}"):
                if not self.tokens[self.at]:
                    raise TranslationError("A brace is not closed.")
                self._statement()
        else:
            self._statement()
        self._exit()

    def _if(self) -> None:
        self.expect("(")
        condition = convert(self.expression(), BOOL)
        self.expect(")")
        self.lines.append(f"if ({condition.text}) {{")
        self._inside()
        self.lines.append("}")
        if self.accept("else"):
            self.lines[-1] = "} else {"
            self._inside()
            self.lines.append("}")

    def _do(self) -> None:
        self.lines.append("loop {")
        self._inside()
        self.lines.append("continuing {")
        self.expect("while")
        self.expect("(")
        condition = convert(self.expression(), BOOL)
        self.expect(")")
        self.expect(";")
        self.lines += [f"break if !({condition.text});", "}", "}"]

    def _for(self) -> None:
        self.expect("(")
        self.lines.append("{")
        self._enter()
        if not self.accept(";"):
            self._simple()
            self.expect(";")
        self._loop(None)
        self._exit()
        self.lines.append("}")

    def _loop(self, steps: list[str] | None) -> None:
        """Write a loop; `steps` is None if the parser must read the step after the condition."""
        tests: list[str] = []
        if self.tokens[self.at] != ";":
            before = self.aside()
            condition = convert(self.expression(), BOOL)
            tests = self.back(before)
            tests.append(f"if (!({condition.text})) {{ break; }}")
        if steps is None:
            self.expect(";")
            before = self.aside()
            if self.tokens[self.at] != ")":
                self._simple()
                while self.accept(","):
                    self._simple()
            steps = self.back(before)
        self.expect(")")
        self.lines += ["loop {", *tests]
        self._inside()
        if steps:
            self.lines += ["continuing {", *steps, "}"]
        self.lines.append("}")

    def _leave(self, token: str) -> None:
        if token != "return" or self.accept(";"):
            if token != "return":
                self.expect(";")
            self.lines.append(f"{token};")
            return
        value = convert(self.expression(), self._result)
        self.expect(";")
        self.lines.append(f"return {value.text};")

    def _simple(self) -> None:
        """Translate a declaration, an assignment or a call."""
        fixed = self.accept("const")
        token, following = self.tokens[self.at], self.tokens[self.at + 1]
        kind = self.symbols.types.get(token)
        if kind is not None and following != "(":
            self.at += 1
            self._declare(kind, fixed)
            while self.accept(","):
                self._declare(kind, fixed)
        elif token in _STEPS:
            self.at += 1
            self.lines.append(f"{self._unary().text}{token};")
        else:
            self._assign()

    def _declare(self, kind: Type, fixed: bool) -> None:
        name = self.take()
        text = renamed(name)
        if self.accept("["):
            length = self.take()
            if not length.isdigit():
                raise TranslationError(f"The length of '{name}' is not a number.")
            self.expect("]")
            kind = Type(kind.kind, kind.size, int(length))
        if self.accept("="):
            value = convert(self._initial(kind), kind)
            # WGSL can index an array dynamically only if it is in a variable.
            begin = f"var {text}: {type_text(kind)}"
            begin = f"let {text}" if fixed and kind.length is None else begin
            self.lines.append(f"{begin} = {value.text};")
        else:
            self.lines.append(f"var {text}: {type_text(kind)};")
        self.scope[name] = Value(text, kind)

    def _initial(self, kind: Type) -> Value:
        """Return the initial value of a variable: an expression, or the elements of an array."""
        if kind.length is None or not self.accept("{"):
            return self.expression()
        values = [convert(self.expression(), kind.element)]
        while self.accept(","):
            values.append(convert(self.expression(), kind.element))
        self.expect("}")
        return Value(f"{type_text(kind)}({', '.join(value.text for value in values)})", kind)

    def _assign(self) -> None:
        target = self._unary()
        token = self.tokens[self.at]
        if token in _STEPS:
            self.at += 1
            self.lines.append(f"{target.text}{token};")
        elif token in _ASSIGNMENTS:
            self.at += 1
            value = self.expression()
            if token in ("<<=", ">>="):
                value = convert(value, Type("u32", target.type.size))
            elif token in ("=", "&=", "|=", "^=") or value.type.size != 1:
                value = convert(value, target.type)
            else:
                value = convert(value, Type(target.type.kind))
            self.lines.append(f"{target.text} {token} {value.text};")
        else:
            self.lines.append(f"{target.text};")


def _indented(lines: Iterable[str]) -> Iterator[str]:
    depth = 1
    for line in lines:
        depth -= line[0] == "}"
        yield "    " * depth + line
        depth += line[-1] == "{"
