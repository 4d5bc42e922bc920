"""A preprocessor for kernel texts: a tokenizer and macro expansion."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from litegpu.errors import CompilationError

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_TOKEN = re.compile(
    r"[A-Za-z_]\w*"
    r"|0[xX][0-9a-fA-F]+[uU]?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fFuU]?"
    r"|<<=|>>=|\+\+|--|<<|>>|&&|\|\||[-+*/%&|^<>=!]=|[^\s\w]"
)
_DEFINE = re.compile(r"^[ \t]*#define (\w+)(?:\(([^)]*)\))?((?:\\\n|[^\n])*)\n", re.MULTILINE)


class TranslationError(CompilationError):
    """A kernel contains a construct that the portable dialect does not have."""


class Macro(NamedTuple):
    """The definition of a macro; `parameters` is None for object-like macros."""

    parameters: tuple[str, ...] | None
    body: tuple[str, ...]


Macros = Mapping[str, Macro]


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a text that has no directives."""
    return _TOKEN.findall(_COMMENT.sub(" ", text))


def split_macros(text: str) -> tuple[dict[str, Macro], str]:
    """Return the macros that a text defines, and the rest of the text."""
    found: dict[str, Macro] = {}
    text = _COMMENT.sub(" ", text)
    for name, parameters, body in _DEFINE.findall(text):
        names = tuple(each.strip() for each in parameters.split(",")) if parameters else None
        if names is None and f"#define {name}()" in text:
            names = ()
        found[name] = Macro(names, tuple(_TOKEN.findall(body.replace("\\\n", " "))))
    return found, _DEFINE.sub("", text)


def expand(
    tokens: Sequence[str], macros: Macros, hidden: frozenset[str] = frozenset()
) -> list[str]:
    """Return tokens with all macros expanded, except the macros in `hidden`.

    Raises TranslationError for a macro with the wrong number of arguments.
    """
    found: list[str] = []
    i, count = 0, len(tokens)
    while i < count:
        token = tokens[i]
        i += 1
        macro = macros.get(token)
        if macro is None or token in hidden:
            found.append(token)
        elif macro.parameters is None:
            found += expand(macro.body, macros, hidden | {token})
        elif i < count and tokens[i] == "(":
            arguments, i = _arguments(tokens, i)
            given = [expand(each, macros, hidden) for each in arguments]
            found += expand(_filled(token, macro, given), macros, hidden | {token})
        else:
            found.append(token)
    return found


def _filled(name: str, macro: Macro, given: Sequence[list[str]]) -> list[str]:
    parameters = macro.parameters or ()
    if len(parameters) != len(given) and not (not parameters and given == [[]]):
        raise TranslationError(f"{name} takes {len(parameters)} arguments, not {len(given)}.")
    values = dict(zip(parameters, given, strict=False))
    found: list[str] = []
    for token in macro.body:
        value = values.get(token)
        if value is None:
            found.append(token)
        else:
            found += value
    return found


def _arguments(tokens: Sequence[str], start: int) -> tuple[list[list[str]], int]:
    """Return the arguments in the parentheses at `start`, and the index after these arguments."""
    found: list[list[str]] = [[]]
    depth = 0
    for i in range(start, len(tokens)):
        token = tokens[i]
        if token in ("(", "[", "{"):
            depth += 1
            if depth == 1:
                continue
        elif token in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return found, i + 1
        elif token == "," and depth == 1:
            found.append([])
            continue
        found[-1].append(token)
    raise TranslationError("A parenthesis is not closed.")
