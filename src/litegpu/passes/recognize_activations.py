"""Recognizes activations that a model expresses in several ops: HARD_SWISH, GELU or swish.

An activation in several ops reads x at least twice; x must therefore be stored, and the producer of
x cannot have an epilogue. The single epilogue op reads x once, and a pass can fuse it with the
producer of x.

The pass expands an expression as a polynomial in x and one inner function of x. Because of the
expansion, the order of factors, POW or MUL, and DIV or MUL make no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from litegpu.graph import SELF, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, as_float32
from litegpu.passes.base import Editor, PassResult, label

Polynomial = Mapping[tuple[int, ...], float]
"""The coefficient of each product of atoms; the key () is the constant.

Atom 0 is x; all other atoms are functions.
"""

TOLERANCE = 1e-6
"""Maximum relative difference between the constants of a match and those of the function."""
_CLOSE = 0.05
"""Maximum relative difference of the constants for which a declined match is reported."""

_X: Polynomial = {(0,): 1.0}
_MOST_TERMS, _MOST_FACTORS, _MOST_NODES = 8, 6, 12
_LAST = ("ADD", "DIV", "MUL", "SUB")
"""The ops in which the supported expressions can end."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A function of a polynomial in x; CLAMP clamps to the range from `low` to `high`."""

    function: str
    argument: Polynomial
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, slots=True)
class Spelling:
    """A way to write an activation: result and argument of the inner function, as polynomials."""

    name: str
    result: Polynomial
    inner: Atom
    scaled: bool = False
    """Whether the argument may be a multiple of x; the factor is the epilogue op's `scale`."""


_GELU_SCALE = 0.7978845608028654  # the square root of 2 / pi
SPELLINGS = (
    Spelling("HARD_SWISH", {(0, 1): 1.0}, Atom("CLAMP", {(): 0.5, (0,): 1 / 6}, 0.0, 1.0)),
    Spelling(
        "GELU_TANH",
        {(0,): 0.5, (0, 1): 0.5},
        Atom("TANH", {(0,): _GELU_SCALE, (0, 0, 0): _GELU_SCALE * 0.044715}),
    ),
    Spelling("SWISH", {(0, 1): 1.0}, Atom("LOGISTIC", {(0,): 1.0}), scaled=True),
)


def recognize_activations(graph: Graph) -> PassResult:
    """Replace each activation in several ops by one op, and remove nodes without readers."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != COPY or not node.epilogue or node.epilogue[-1].function not in _LAST:
            continue
        found = _find(graph, producers, node)
        if found is None:
            continue
        reason = found.obstacle
        inner = [n for n in found.nodes if n is not node]
        if not reason and any(
            v in graph.outputs or any(reader not in found.nodes for reader in consumers[v])
            for each in inner
            for v in each.outputs
        ):
            reason = "other nodes read a value in between"
        if reason:
            edit.declined.append(f"{label(node)}: {found.epilogue_op.function}, but {reason}")
            continue
        merged = (*node.merged, *(n.index for n in inner))
        edit.nodes[position] = replace(
            node, inputs=(found.x,), epilogue=(found.epilogue_op,), merged=merged
        )
        for each in inner:
            edit.nodes[edit.position(each)] = None
        edit.applied.append(
            f"{label(node)}: {found.epilogue_op.function} for {len(inner) + 1} nodes"
        )
    return edit.result()


@dataclass(frozen=True, slots=True)
class _Found:
    x: int
    epilogue_op: EpilogueOp
    nodes: tuple[Node, ...]
    obstacle: str = ""


def _find(graph: Graph, producers: Mapping[int, Node], node: Node) -> _Found | None:
    """Return the activation that ends in a node; an inexact match only if there is no exact one."""
    close = None
    for x in _ancestors(graph, producers, node):
        reader = _Reader(graph, producers, x)
        result = reader.value(node.outputs[0])
        found = None if result is None else _named(result, reader.atoms)
        if found is None:
            continue
        epilogue_op, obstacle = found
        answer = _Found(x, epilogue_op, tuple(reader.nodes.values()), obstacle)
        if not obstacle:
            return answer
        close = close or answer
    return close


def _ancestors(graph: Graph, producers: Mapping[int, Node], node: Node) -> list[int]:
    """Return the values from which a chain of epilogue ops could start, nearest first."""
    found: dict[int, None] = {}
    waiting = [node]
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        for v in waiting.pop(0).operands:
            if v in found or graph.values[v].is_constant:
                continue
            found[v] = None
            producer = producers.get(v)
            if producer is not None and producer.op == COPY:
                waiting.append(producer)
    return list(found)


def _named(result: Polynomial, atoms: Sequence[Atom]) -> tuple[EpilogueOp, str] | None:
    """Return the epilogue op that equals a polynomial, and the reason if it is no exact match."""
    used = {atom for key in result for atom in key if atom > 0}
    if len(used) != 1:
        return None
    (atom,) = used
    inner, scale = _to_one(atoms[atom - 1])
    result = {
        tuple(min(a, 1) for a in key): factor * scale ** key.count(atom)
        for key, factor in result.items()
    }
    for spelling in SPELLINGS:
        shape = (inner.function, inner.low, inner.high)
        if shape != (spelling.inner.function, spelling.inner.low, spelling.inner.high):
            continue
        pairs = ((result, spelling.result), (inner.argument, spelling.inner.argument))
        if spelling.scaled and _alike(*pairs[0], TOLERANCE) and inner.argument.keys() == {(0,)}:
            return EpilogueOp(spelling.name, attributes=(("scale", inner.argument[0,]),)), ""
        if all(_alike(*pair, TOLERANCE) for pair in pairs):
            return EpilogueOp(spelling.name), ""
        if all(_alike(*pair, _CLOSE) for pair in pairs):
            return EpilogueOp(spelling.name), "the constants differ"
    return None


def _to_one(atom: Atom) -> tuple[Atom, float]:
    """Return a clamp from 0 to `high` as a clamp from 0 to 1, and the factor."""
    high = atom.high
    if atom.low != 0 or not 0 < high < math.inf:
        return atom, 1.0
    return replace(atom, argument=_scaled(atom.argument, 1 / high), high=1.0), high


def _alike(found: Polynomial, wanted: Polynomial, tolerance: float) -> bool:
    return found.keys() == wanted.keys() and all(
        abs(found[key] - factor) <= tolerance * abs(factor) for key, factor in wanted.items()
    )


@dataclass
class _Reader:
    """Expands ops as polynomials of the value `x`; records the visited nodes and functions."""

    graph: Graph
    producers: Mapping[int, Node]
    x: int
    atoms: list[Atom] = field(default_factory=list)
    nodes: dict[int, Node] = field(default_factory=dict)
    known: dict[int, Polynomial | None] = field(default_factory=dict)

    def value(self, v: int) -> Polynomial | None:
        """Return a value's polynomial; None if the value depends on more than x."""
        if v == self.x:
            return _X
        if v not in self.known:
            self.known[v] = self._computed(v)
        return self.known[v]

    def _computed(self, v: int) -> Polynomial | None:
        value, node = self.graph.values[v], self.producers.get(v)
        if value.is_constant:
            return {(): float(as_float32(value).ravel()[0])} if value.elements == 1 else None
        same_shape = value.shape == self.graph.values[self.x].shape
        if node is None or node.op != COPY or not node.epilogue or not same_shape:
            return None
        if len(self.nodes) >= _MOST_NODES:
            return None
        self.nodes[v] = node  # before its operands: also limits the recursion
        running = self.value(node.inputs[0])
        for epilogue_op in node.epilogue:
            running = self._applied(epilogue_op, running)
        return running

    def _applied(self, epilogue_op: EpilogueOp, running: Polynomial | None) -> Polynomial | None:
        operands = [running if v == SELF else self.value(v) for v in epilogue_op.operands]
        operands.insert(epilogue_op.position, running)
        found = [each for each in operands if each is not None]
        if len(found) < len(operands) or epilogue_op.extend:
            return None
        if epilogue_op.function in _ARITHMETIC:
            result = _ARITHMETIC[epilogue_op.function](*found)
            return result if result is None or _is_small(result) else None
        return self._function(epilogue_op.function, found)

    def _function(self, name: str, arguments: list[Polynomial]) -> Polynomial | None:
        """Return the atom of an inner function applied to a polynomial."""
        if name in _CLAMPS:
            return self._clamp(arguments[0], *_CLAMPS[name])
        if name in ("TANH", "LOGISTIC"):
            return self._atom(Atom(name, arguments[0]))
        bounds = [a for a in arguments if a.keys() <= {()}]
        if name not in ("MINIMUM", "MAXIMUM") or len(bounds) != 1:
            return None
        (argument,) = (a for a in arguments if a is not bounds[0])
        bound = bounds[0].get((), 0.0)
        limits = (-math.inf, bound) if name == "MINIMUM" else (bound, math.inf)
        return self._clamp(argument, *limits)

    def _clamp(self, argument: Polynomial, low: float, high: float) -> Polynomial:
        (key, factor), *more = argument.items() or [((), 0.0)]
        if not more and len(key) == 1 and key[0] > 0 and factor == 1:
            inner = self.atoms[key[0] - 1]
            if inner.function == "CLAMP":  # of a clamp: MINIMUM(MAXIMUM(x, 0), 6) and similar
                argument, low, high = inner.argument, max(low, inner.low), min(high, inner.high)
        return self._atom(Atom("CLAMP", argument, low, high))

    def _atom(self, atom: Atom) -> Polynomial:
        if atom not in self.atoms:
            self.atoms.append(atom)
        return {(1 + self.atoms.index(atom),): 1.0}


_CLAMPS = {"RELU": (0.0, math.inf), "RELU6": (0.0, 6.0), "RELU_0_TO_1": (0.0, 1.0)}


def _scaled(a: Polynomial, factor: float) -> Polynomial:
    return {key: each * factor for key, each in a.items()}


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return {key: a.get(key, 0.0) + b.get(key, 0.0) for key in (*a, *b)}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: dict[tuple[int, ...], float] = {}
    for (left, x), (right, y) in product(a.items(), b.items()):
        key = tuple(sorted(left + right))
        result[key] = result.get(key, 0.0) + x * y
    return result


def _quotient(a: Polynomial, b: Polynomial) -> Polynomial | None:
    divisor = b.get((), 0.0)
    return _scaled(a, 1 / divisor) if b.keys() == {()} and divisor else None


def _power(a: Polynomial, b: Polynomial) -> Polynomial | None:
    exponent = b.get((), 0.0)
    if b.keys() != {()} or exponent not in (1.0, 2.0, 3.0):
        return None
    result = a
    for _ in range(int(exponent) - 1):
        result = _product(result, a)
    return result


_ARITHMETIC: Mapping[str, Callable[..., Polynomial | None]] = {
    "ADD": _sum,
    "DIV": _quotient,
    "MUL": _product,
    "NEG": lambda a: _scaled(a, -1.0),
    "POW": _power,
    "SQUARE": lambda a: _product(a, a),
    "SUB": lambda a, b: _sum(a, _scaled(b, -1.0)),
}


def _is_small(a: Polynomial) -> bool:
    return len(a) <= _MOST_TERMS and all(len(key) <= _MOST_FACTORS for key in a)
