"""Translates the macros and functions of a dialect to WGSL on demand."""

from __future__ import annotations

import re
from collections.abc import Iterable

from litegpu.codegen.macros import Macro, expand, split_macros, tokens_of
from litegpu.codegen.wgsl_builtins import RUNTIME_BITS
from litegpu.codegen.wgsl_expressions import Signature, Symbols
from litegpu.codegen.wgsl_names import renamed
from litegpu.codegen.wgsl_statements import Statements
from litegpu.codegen.wgsl_types import TYPES, Type, Value, type_text

_FUNCTION = re.compile(r"^(\w+) (\w+)\(([^)]*)\) \{", re.MULTILINE)
_STRUCT = re.compile(r"^struct (\w+) \{([^}]*)\};", re.MULTILINE)
_BRACE = re.compile(r"[{}]")

_RUNTIME_BITS = f"""\
fn {RUNTIME_BITS}(bits: u32) -> u32 {{
    var found = bits;
    return found;
}}"""


class Words:
    """The macros, structs and functions of a prelude; a function is translated at its first use."""

    def __init__(self, text: str) -> None:
        """Parse a prelude; its functions and structs must start at the beginning of lines."""
        self.macros, text = split_macros(text)
        structs: dict[str, dict[str, Type]] = {}
        for name, members in _STRUCT.findall(text):
            fields = (each.split() for each in members.split(";") if each.strip())
            structs[name] = {member: TYPES[kind] for kind, member in fields}
        types = {**TYPES, **{name: Type(name, 0) for name in structs}}
        functions: dict[str, Signature] = {}
        self.symbols = Symbols({}, functions, structs, types)
        """Names that kernels may use in addition to their own variables."""
        self._bodies: dict[str, tuple[list[str], str]] = {}
        """For each function: the names of its parameters, and its statements."""
        for found in _FUNCTION.finditer(text):
            result, name, parameters = found.groups()
            pairs = [each.split() for each in parameters.split(",")]
            kinds = tuple(self.type_of(kind) for kind, _ in pairs)
            functions[name] = Signature(self.type_of(result), kinds)
            body = text[found.end() : _closing(text, found.end())]
            self._bodies[name] = ([parameter for _, parameter in pairs], body)
        self._translated: dict[str, tuple[str, frozenset[str]]] = {}

    def type_of(self, name: str) -> Type:
        """Return the type with a name, which may be the name of a macro."""
        macro = self.macros.get(name)
        return self.symbols.types[macro.body[0] if macro is not None else name]

    def statements(
        self, text: str, macros: dict[str, Macro], variables: dict[str, Value]
    ) -> Statements:
        """Return the translator of a kernel with additional macros and variables."""
        tokens = expand(tokens_of(text), {**self.macros, **macros})
        return Statements(tokens, self.symbols._replace(variables=variables))

    def definitions(self, called: Iterable[str], text: str) -> list[str]:
        """Return the functions that a kernel calls, with the structs and functions that these use.

        `text` is the rest of the kernel's text, in which structs may be used.
        """
        found: dict[str, str] = {}
        missing = sorted(called)
        while missing:
            name = missing.pop()
            if name not in found:
                found[name], further = self._function(name)
                missing += sorted(further)
        texts = [*found.values()]
        whole = "\n".join((text, *texts))
        if f"{RUNTIME_BITS}(" in whole:
            texts.insert(0, _RUNTIME_BITS)
        for name, members in self.symbols.structs.items():
            if name in whole:
                fields = ", ".join(f"{key}: {type_text(kind)}" for key, kind in members.items())
                texts.insert(0, f"struct {name} {{ {fields} }}")
        return texts

    def _function(self, name: str) -> tuple[str, frozenset[str]]:
        """Return a function in WGSL, and the names of the functions that it calls."""
        if name not in self._translated:
            signature = self.symbols.functions[name]
            names, body = self._bodies[name]
            tokens = expand(tokens_of(body), self.macros)
            statements = Statements(tokens, self.symbols, signature.result)
            parameters = []
            for parameter, kind in zip(names, signature.parameters, strict=True):
                text = statements.parameter(parameter, kind)
                parameters.append(f"{text}: {type_text(kind)}")
            result = type_text(signature.result)
            head = f"fn {renamed(name)}({', '.join(parameters)}) -> {result} {{"
            whole = "\n".join((head, statements.body(), "}"))
            self._translated[name] = whole, frozenset(statements.called)
        return self._translated[name]


def _closing(text: str, start: int) -> int:
    """Return the index of the brace that closes the brace before `start`."""
    depth = 1
    for found in _BRACE.finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if not depth:
            return found.start()
    raise ValueError("A function of the prelude has no end.")
