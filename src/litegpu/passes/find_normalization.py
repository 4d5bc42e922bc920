"""Replaces normalizations, which models express as a dozen operations, by a single operation.

A normalization is (x - mean) / sqrt(variance + e), optionally with factors and a shift: instance
norm, layer norm or RMS norm. Exporters express normalizations in many ways; the pass therefore
represents each value symbolically as a sum of terms, and recognizes the sums that are
normalizations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile

from litegpu.graph import Graph, Node, Value
from litegpu.ops.base import as_float32, constant_list
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.types import is_quantized
from litegpu.ops.normalize import (
    NORMALIZE,
    STATISTICS,
    NormalizeAttributes,
    parts_of,
    sums_shape,
)
from litegpu.passes.base import Editor, PassResult, label

_MAX_TERMS, _MAX_FACTORS, _MAX_OPERATIONS = 3, 8, 64


@dataclass(frozen=True, slots=True)
class _Of:
    """The value whose statistics (mean, variance) are computed, and the reduced axes."""

    source: int
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Square:
    """The square of a value, of its mean, or of the difference of value and mean."""

    of: _Of
    base: str


@dataclass(frozen=True, slots=True)
class _Deviation:
    """A power of (mean square + epsilon), of the value or of its difference from the mean."""

    of: _Of
    centred: bool
    epsilon: float = 0.0
    power: float = 1.0


@dataclass(frozen=True, slots=True, order=True)
class _Term:
    """The value ("x"), its mean ("mean") or 1 ("one"), times factors and possibly 1 / deviation."""

    base: str
    sign: int = 1
    factors: tuple[int, ...] = ()
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of terms; `deviation` is the divisor of some of these terms."""

    of: _Of
    terms: tuple[_Term, ...]
    deviation: _Deviation | None = None


_Form = _Square | _Deviation | _Sum
_DIFFERENCE = ({_Term("x"), _Term("mean", -1)}, {_Term("x", -1), _Term("mean")})


def find_normalization(graph: Graph) -> PassResult:
    """Replace each normalization by one operation, and by products and sums with constants."""
    edit = Editor(graph)
    finder = _Finder(graph)
    explained: set[_Of] = set()
    for position, node in enumerate(graph.nodes):
        form = finder.follow(node)
        if not isinstance(form, _Sum) or not _is_normalization(form):
            continue
        del finder.forms[node.outputs[0]]  # the result may be normalized again
        explained.add(form.of)
        absorbed = sorted(finder.absorbed(node, form.of), key=edit.position)
        reason = _obstacle(graph, node, form, absorbed)
        if reason:
            edit.declined.append(f"normalization that ends in {label(node)}: {reason}")
            continue
        for each in absorbed:
            edit.nodes[edit.position(each)] = None
        *ahead, last = _spelled_out(edit, node, form, tuple(each.index for each in absorbed))
        for each in ahead:
            edit.insert_before(position, each)
        edit.nodes[position] = last
        edit.applied.append(f"{len(absorbed) + 1} operations up to {label(node)} become one")
    for node, form in finder.deviations:
        if form.of not in explained:
            edit.declined.append(
                f"deviation {label(node)}: the input of the deviation is not scaled"
            )
    return edit.result()


def _is_statistic(form: _Sum) -> bool:
    """Whether a sum consists of statistics (means, deviations), without the value."""
    return all(term.base != "x" and not term.factors for term in form.terms)


def _is_normalization(form: _Sum) -> bool:
    """Whether a sum is (x - mean) / deviation times factors, plus at most one shift."""
    if form.deviation is None:
        return False
    terms = {term.base: term for term in form.terms}
    if len(terms) < len(form.terms) or "x" not in terms:
        return False
    wanted = {"x": _Term("x", 1, terms["x"].factors, True)}
    if form.deviation.centred:
        wanted["mean"] = replace(wanted["x"], base="mean", sign=-1)
    shift = terms.pop("one", None)
    return terms == wanted and (shift is None or (len(shift.factors) == 1 and not shift.scaled))


def _obstacle(graph: Graph, node: Node, form: _Sum, absorbed: list[Node]) -> str:
    shape = graph.values[form.of.source].shape
    if len(shape) > 4:
        return f"the value has {len(shape)} dimensions, more than 4"
    if graph.values[node.outputs[0]].shape != shape:
        return "the factors broadcast the value to a larger shape"
    if len(absorbed) > _MAX_OPERATIONS:
        return f"the normalization has more than {_MAX_OPERATIONS} operations"
    left_out = {v for each in absorbed for v in each.outputs}
    inside = {id(each) for each in (*absorbed, node)}
    readers = graph.consumers()
    if any(v in graph.outputs for v in left_out) or any(
        id(each) not in inside for v in left_out for each in readers.get(v, ())
    ):
        return "nodes that would be removed have other readers"
    return ""


def _spelled_out(edit: Editor, node: Node, form: _Sum, merged: tuple[int, ...]) -> list[Node]:
    """Return the nodes that replace the last node of a normalization."""
    value, deviation = edit.graph.values[form.of.source], form.deviation
    assert deviation is not None
    axes = tuple(axis + 4 - len(value.shape) for axis in form.of.axes)
    parts = parts_of(value.shape4, axes)
    attributes = NormalizeAttributes(axes, deviation.epsilon, deviation.centred, parts)
    nodes: list[Node] = []
    inputs = [form.of.source]
    if parts > 1:
        shape = sums_shape(value.shape4, axes, parts)
        inputs.append(edit.new_value(value, shape=shape, precise=True))
        output = (inputs[1],)
        nodes.append(Node(node.index, STATISTICS, 1, (value.id,), output, attributes=attributes))
    terms = {term.base: term for term in form.terms}
    following = [("MUL", factor) for factor in terms["x"].factors]
    if "one" in terms:
        following.append(("ADD" if terms["one"].sign > 0 else "SUB", terms["one"].factors[0]))
    running = edit.new_value(value) if following else node.outputs[0]
    first = Node(
        *(node.index, NORMALIZE, 1, tuple(inputs), (running,)), attributes=attributes, merged=merged
    )
    nodes.append(first)
    for number, (op, other) in enumerate(following, 1):
        result = edit.new_value(value) if number < len(following) else node.outputs[0]
        params = {"activation": "none"}
        nodes.append(Node(node.index, op, 1, (running, other), (result,), params))
        running = result
    activation = {"activation": node.params.get("activation", "none")}
    epilogue = () if following else activation_epilogue(activation)
    return [*nodes[:-1], replace(nodes[-1], params=activation, epilogue=epilogue)]


@dataclass
class _Finder:
    """Computes the symbolic forms of values, node by node."""

    graph: Graph
    forms: dict[int, _Form] = field(default_factory=dict)
    deviations: list[tuple[Node, _Deviation]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start without the symbolic form of any value."""
        self._producers = self.graph.producers()
        self._wholes: dict[int, int] = {}

    def follow(self, node: Node) -> _Form | None:
        """Return (and store) the symbolic form of a node's output; None if it is not relevant."""
        rule = _RULES.get(node.op)
        form = rule(self, node) if rule and not is_quantized(self.graph, node) else None
        if isinstance(form, _Deviation) and form.power == 1.0 and node.op != "ADD":
            self.deviations.append((node, form))
        # An activation may follow a complete normalization, but is not part of it.
        whole = isinstance(form, _Sum) and _is_normalization(form)
        if form is None or not (whole or node.params.get("activation", "none") == "none"):
            return None
        self.forms[node.outputs[0]] = form
        return form

    def absorbed(self, node: Node, of: _Of) -> list[Node]:
        """Return the nodes of a normalization before its last one, in any order."""
        found: dict[int, Node] = {}
        waiting = [node]
        while waiting and len(found) <= _MAX_OPERATIONS:
            for v in waiting.pop().inputs:
                if self._whole(v) == self._whole(of.source) or v not in self.forms:
                    continue
                producer = self._producers[v]
                if id(producer) not in found:
                    found[id(producer)] = producer
                    waiting.append(producer)
        return list(found.values())

    def _number(self, v: int) -> float | None:
        """Return the number that a constant of one element holds."""
        value = self.graph.values[v]
        if not value.is_constant or value.elements != 1:
            return None
        return float(as_float32(value).ravel()[0])

    def _as_sum(self, v: int, of: _Of) -> _Sum | None:
        """Return a value as a sum of terms; `of` is the value whose statistics are computed."""
        if self._whole(v) == self._whole(of.source):
            return _Sum(of, (_Term("x"),))
        form = self.forms.get(v)
        if form is None:
            return _Sum(of, () if self._number(v) == 0.0 else (_Term("one", factors=(v,)),))
        if not isinstance(form, _Sum) or form.of != of:
            return None
        if not _is_statistic(form) or self._lines_up(self.graph.values[v], of):
            return form
        return None

    def _whole(self, v: int) -> int:
        """Return the value behind reshapes that only add or remove leading axes of size 1."""
        if v not in self._wholes:
            producer = self._producers.get(v)
            source = producer.inputs[0] if producer and producer.op in _VIEWS else v
            same = _without_leading_ones(self.graph.values[source]) == _without_leading_ones(
                self.graph.values[v]
            )
            self._wholes[v] = self._whole(source) if source != v and same else v
        return self._wholes[v]

    def _lines_up(self, value: Value, of: _Of) -> bool:
        """Whether a statistic broadcasts along exactly the axes that it was reduced over."""
        whole = self.graph.values[of.source].shape
        reduced = tuple(1 if axis in of.axes else size for axis, size in enumerate(whole))
        return (1,) * (len(whole) - len(value.shape)) + value.shape == reduced

    def _both(self, node: Node) -> tuple[_Sum, _Sum] | None:
        """Return both inputs as sums over the same value, if at least one input depends on it."""
        known = [self.forms[v] for v in node.inputs if isinstance(self.forms.get(v), _Sum)]
        if not known:
            return None
        of = known[0].of
        left, right = self._statistics(node, of) or (self._as_sum(v, of) for v in node.inputs)
        return (left, right) if left and right else None

    def _statistics(self, node: Node, of: _Of) -> tuple[_Sum, _Sum] | None:
        """Return both inputs if each is zero or a statistic, and all statistics have one shape.

        The finder checks the axes of the result where a node combines it with the value.
        """
        found: list[_Sum] = []
        shapes = set()
        for v in node.inputs:
            form = self.forms.get(v)
            if self._number(v) == 0.0:
                found.append(_Sum(of, ()))
            elif isinstance(form, _Sum) and form.of == of and _is_statistic(form):
                found.append(form)
                shapes.add(self.graph.values[v].shape)
            else:
                return None
        return (found[0], found[1]) if len(shapes) == 1 else None

    def mean(self, node: Node) -> _Form:
        source = node.inputs[0]
        rank = len(self.graph.values[source].shape)
        axes = tuple(sorted({a % rank for a in constant_list(self.graph, node.inputs[1])}))
        form = self.forms.get(source)
        if isinstance(form, _Square) and form.base in ("x", "difference"):
            if form.base == "x":
                return _Deviation(replace(form.of, axes=axes), centred=False)
            if form.of.axes == axes:
                return _Deviation(form.of, centred=True)
        return _Sum(_Of(source, axes), (_Term("mean"),))

    def view(self, node: Node) -> _Form | None:
        """Return the form of a reshape that adds or removes axes of size 1."""
        form = self.forms.get(node.inputs[0])
        before, after = (self.graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
        same = [n for n in before if n != 1] == [n for n in after if n != 1]
        of_x = isinstance(form, _Sum) and any(t.base == "x" or t.factors for t in form.terms)
        return None if isinstance(form, _Square) or of_x or not same else form

    def _square_of(self, v: int, form: _Form | None) -> _Form | None:
        if form is None:
            return _Square(_Of(v, ()), "x")
        if not isinstance(form, _Sum):
            return None
        if set(form.terms) in _DIFFERENCE:
            return _Square(form.of, "difference")
        return _Square(form.of, "mean") if form.terms == (_Term("mean"),) else None

    def square(self, node: Node) -> _Form | None:
        return self._square_of(node.inputs[0], self.forms.get(node.inputs[0]))

    def squared_difference(self, node: Node) -> _Form | None:
        both = self._both(node)
        form = both and _added(*both, -1)
        return self._square_of(node.outputs[0], form) if form else None

    def add(self, node: Node) -> _Form | None:
        for v, other in (node.inputs, node.inputs[::-1]):
            form, number = self.forms.get(v), self._number(other)
            if isinstance(form, _Deviation):
                if form.power != 1.0 or form.epsilon or number is None or number < 0.0:
                    return None
                return replace(form, epsilon=number)
        both = self._both(node)
        return both and _added(*both, 1)

    def subtract(self, node: Node) -> _Form | None:
        first, second = (self.forms.get(v) for v in node.inputs)
        if isinstance(first, _Deviation) and isinstance(second, _Square):
            # The mean square minus the squared mean: another formula of the variance.
            plain = not first.centred and first == _Deviation(first.of, centred=False)
            if plain and second == _Square(first.of, "mean"):
                return replace(first, centred=True)
            return None
        both = self._both(node)
        return both and _added(*both, -1)

    def multiply(self, node: Node) -> _Form | None:
        if self._whole(node.inputs[0]) == self._whole(node.inputs[1]):
            largest = max(node.inputs, key=lambda v: len(self.graph.values[v].shape))
            return self._square_of(largest, self.forms.get(largest))
        both = self._both(node)
        return both and _product(*both)

    def negate(self, node: Node) -> _Form | None:
        form = self.forms.get(node.inputs[0])
        if not isinstance(form, _Sum):
            return None
        terms = (replace(term, sign=-term.sign) for term in form.terms)
        return replace(form, terms=tuple(terms))

    def root(self, node: Node) -> _Form | None:
        return self._raised(node.inputs[0], 0.5)

    def inverse_root(self, node: Node) -> _Form | None:
        return self._raised(node.inputs[0], -0.5)

    def power(self, node: Node) -> _Form | None:
        exponent = self._number(node.inputs[1])
        if exponent is None:
            return None
        return self.square(node) if exponent == 2.0 else self._raised(node.inputs[0], exponent)

    def _raised(self, v: int, exponent: float) -> _Form | None:
        form = self.forms.get(v)
        if not isinstance(form, _Deviation):
            return None
        form = replace(form, power=form.power * exponent)
        if form.power == -0.5:
            return _Sum(form.of, (_Term("one", scaled=True),), replace(form, power=1.0))
        return form if form.power == 0.5 else None

    def divide(self, node: Node) -> _Form | None:
        first, second = node.inputs
        form = self.forms.get(second)
        if not isinstance(form, _Deviation) or form.power != 0.5:
            return None
        if not self._lines_up(self.graph.values[second], form.of):
            return None
        scale = _Sum(form.of, (_Term("one", scaled=True),), replace(form, power=1.0))
        if self._number(first) == 1.0:
            return scale
        total = self._as_sum(first, form.of)
        return total and _product(total, scale)


def _without_leading_ones(value: Value) -> tuple[int, ...]:
    return tuple(dropwhile(lambda size: size == 1, value.shape))


def _joined(left: _Sum, right: _Sum, terms: list[_Term]) -> _Sum | None:
    """Return a sum of `terms` if both operands have the same deviation."""
    deviations = {form.deviation for form in (left, right)} - {None}
    if len(deviations) > 1 or len(terms) > _MAX_TERMS:
        return None
    if any(len(term.factors) > _MAX_FACTORS for term in terms):
        return None
    return _Sum(left.of, tuple(sorted(terms)), next(iter(deviations), None))


def _added(left: _Sum, right: _Sum, sign: int) -> _Sum | None:
    turned = [replace(term, sign=term.sign * sign) for term in right.terms]
    return _joined(left, right, [*left.terms, *turned])


def _product(left: _Sum, right: _Sum) -> _Sum | None:
    """Return a product; one operand must consist only of factors and a deviation."""
    if len(left.terms) != 1 or left.terms[0].base != "one":
        left, right = right, left
    if not left.terms:
        return None
    (factor, *others) = left.terms
    both_scaled = factor.scaled and any(term.scaled for term in right.terms)
    if others or factor.base != "one" or both_scaled:
        return None
    terms = [
        _Term(
            term.base,
            term.sign * factor.sign,
            tuple(sorted((*term.factors, *factor.factors))),
            term.scaled or factor.scaled,
        )
        for term in right.terms
    ]
    return _joined(left, right, terms)


_VIEWS = frozenset(("EXPAND_DIMS", "RESHAPE", "SQUEEZE"))
_RULES: Mapping[str, Callable[[_Finder, Node], _Form | None]] = {
    "ADD": _Finder.add,
    "DIV": _Finder.divide,
    "EXPAND_DIMS": _Finder.view,
    "MEAN": _Finder.mean,
    "MUL": _Finder.multiply,
    "NEG": _Finder.negate,
    "POW": _Finder.power,
    "RESHAPE": _Finder.view,
    "RSQRT": _Finder.inverse_root,
    "SQRT": _Finder.root,
    "SQUARE": _Finder.square,
    "SQUARED_DIFFERENCE": _Finder.squared_difference,
    "SQUEEZE": _Finder.view,
    "SUB": _Finder.subtract,
}
"""For each operation, the rule that combines the symbolic forms of its inputs."""
