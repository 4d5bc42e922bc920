"""Small faults that can be put into a file: what `mutants.py` makes mutants of.

Python is changed where its syntax tree says that there is an operator, a number or a call; what
only types, decorators, messages and assertions say is left alone. A kernel template is changed
word by word, outside of its comments.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """The text from `start` to `stop` (in characters) gives way to `new`."""

    kind: str
    start: int
    stop: int
    new: str

    def apply(self, text: str) -> str:
        """Return the text with the fault."""
        return text[: self.start] + self.new + text[self.stop :]


def mutations_of(path: Path) -> list[Mutation]:
    """Return all faults that can be put into a file, each of which changes it."""
    text = path.read_text(encoding="utf-8")
    found = _in_python(text) if path.suffix == ".py" else _in_template(text)
    return [each for each in found if text[each.start : each.stop] != each.new]


# Python

_COMPARISONS = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not")},
    **{ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
}
_ARITHMETIC = {
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.Div: ("/", "*")},
    **{ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.LShift: ("<<", ">>")},
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNSEEN = (ast.JoinedStr, ast.Assert, ast.Raise, ast.Import, ast.ImportFrom)


def _in_python(text: str) -> Iterator[Mutation]:
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    encoded = text.splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        """Return the place in the text: columns of the tree are counted in bytes."""
        return lines[line - 1] + len(encoded[line - 1].encode()[:column].decode())

    def begin(node: ast.expr) -> int:
        return at(node.lineno, node.col_offset)

    def end(node: ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return at(node.end_lineno, node.end_col_offset)

    def between(left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Mutation]:
        inside = text[end(left) : begin(right)]
        word = re.escape(old).replace(r"\ ", r"\s+")
        if found := re.search(rf"(?<!\w){word}(?!\w)" if old[0].isalpha() else word, inside):
            start = end(left) + found.start()
            yield Mutation(f"{old} to {new}", start, end(left) + found.end(), new)

    for node in _walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=right):
                for a, op, b in zip((left, *right), ops, right, strict=False):
                    yield from between(a, b, *_COMPARISONS[type(op)])
            case ast.BinOp(left=left, op=operator, right=other) if type(operator) in _ARITHMETIC:
                if not any(
                    isinstance(side, ast.Constant) and isinstance(side.value, str)
                    for side in (left, other)
                ):
                    yield from between(left, other, *_ARITHMETIC[type(operator)])
            case ast.BoolOp(op=joint, values=values):
                old, new = ("and", "or") if isinstance(joint, ast.And) else ("or", "and")
                for a, b in itertools.pairwise(values):
                    yield from between(a, b, old, new)
            case ast.UnaryOp(op=ast.Not()):
                yield Mutation("not dropped", begin(node), begin(node) + len("not "), "")
            case ast.IfExp(body=body, orelse=orelse):
                yes, no = text[begin(body) : end(body)], text[begin(orelse) : end(orelse)]
                middle = text[end(body) : begin(orelse)]
                yield Mutation("choice swapped", begin(node), end(node), f"{no}{middle}{yes}")
            case ast.Constant(value=bool(value)):
                yield Mutation(f"{value} turned", begin(node), end(node), str(not value))
            case ast.Constant(value=int(value)):
                yield Mutation("number + 1", begin(node), end(node), str(value + 1))
            case ast.Call(func=ast.Name(id=name) as called) if name in _CALLS:
                yield Mutation(
                    f"{name} to {_CALLS[name]}", begin(called), end(called), _CALLS[name]
                )


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "keys", "type_params"):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip: it asserts
                continue
            if isinstance(child, ast.AST) and not isinstance(child, _UNSEEN):
                yield from _walk(child)


# Kernel templates

_WORDS: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("barrier dropped", r"\b(?:BARRIER|cluster_wait|__syncwarp)\(\);", ""),
    ("wait for one copy less", r"\bcopy_wait<(\d+)>", lambda m: f"copy_wait<{int(m[1]) + 1}>"),
    ("mask dropped", r"\bMASK4\((\w+), [^;]*?\)(?=[;,])", r"\1"),
    ("< to <=", r" < (?!=)", " <= "),
    ("<= to <", r" <= ", " < "),
    (">= to >", r" >= ", " > "),
    ("> to >=", r" > ", " >= "),
    ("== to !=", r" == ", " != "),
    ("&& to ||", r" && ", " || "),
    ("|| to &&", r" \|\| ", " && "),
    ("+ to -", r" \+ ", " - "),
    ("- to +", r" - ", " + "),
    ("* to +", r" \* ", " + "),
    ("/ to *", r" / ", " * "),
    ("min to max", r"\bmin\(", "max("),
    ("max to min", r"\bmax\(", "min("),
    ("clamp dropped", r"\bclamp\(([^,()]+), [^,()]+, [^()]+\)", r"\1"),
    ("min dropped", r"\bmin\(([^,()]+), [^,()]+\)", r"(\1)"),
    ("larger to smaller", r"\b(?:MAX4|MAX_NAN4)\(", "MIN4("),
    ("smaller to larger", r"\bMIN4\(", "MAX4("),
    ("rounded elsewhere", r"\b(?:FLOOR4|TRUNC4)\(", "CEIL4("),
    ("lane swapped", r"(?<=\w)\.x\b", ".y"),
    ("lane swapped", r"(?<=\w)\.w\b", ".z"),
    ("number + 1", r"(?<![\w.%\-])(\d+)(?![\w.%])", lambda m: str(int(m[1]) + 1)),
    ("condition dropped", r"\bif \((?=[^;]*\) (?:return|continue|break))", "if (false && "),
)
_NO_CODE = re.compile(
    r"\{#.*?#\}|^[ \t]*(?:#|//)[^\n]*|(?<=[;{}])[ \t]+//[^\n]*|\{% (?:import|include|macro)[^\n]*",
    re.S | re.M,
)


def _in_template(text: str) -> Iterator[Mutation]:
    plain = _NO_CODE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)
    for kind, pattern, new in _WORDS:
        for match in re.finditer(pattern, plain):
            changed = match.expand(new) if isinstance(new, str) else new(match)
            yield Mutation(kind, match.start(), match.end(), changed)
