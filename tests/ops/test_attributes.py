"""The attribute values in the table of operations; other values leave the node on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pytest

import cases
from cases.base import Case
from litegpu.graph import Graph, Node
from litegpu.graph.partition import Subset
from litegpu.ops.base import all_ops, find
from litegpu.ops.common import attributes
from litegpu.ops.common.support import check_support
from litegpu.runtime_abi import bridge
from litegpu.runtime_abi.kernel_slots import SlotKernel
from litegpu.runtime_abi.params import PARAMS
from litegpu.runtime_abi.reader import read_graph
from op_runner import write
from small_models import RUNTIME

pytestmark = pytest.mark.usefixtures("null_device")

CLAIMS = [
    (op.name, name, wrong)
    for op in all_ops()
    for name, _ in PARAMS.get(op.name, ())
    for wrong in attributes.values(op, name).wrong
]


@dataclass
class Curious:
    """A delegate that takes nothing, and keeps what it was shown."""

    found: list[Graph] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._native = bridge.NativeDelegate(self)

    def _get_native_delegate_pointer(self) -> int:
        return self._native.address

    def _apply(
        self, context: int, _preview: Callable[[Sequence[int]], list[Subset]]
    ) -> list[list[int]]:
        self.found.append(read_graph(context))
        return []

    def _take_kernel(self, _context: int, _subset: Subset) -> NoReturn:
        raise AssertionError

    def _release_untaken(self, _context: int) -> None: ...

    def _fail(self, error: BaseException) -> None:
        raise AssertionError from error

    def _prepared(self, _kernel: SlotKernel, _error: BaseException | None) -> NoReturn:
        raise AssertionError


@pytest.fixture(scope="module")
def accepted() -> dict[str, tuple[Graph, Node, Any]]:
    """Return for each operation a graph of a case with a node of it, and what they live in."""
    found: dict[str, tuple[Graph, Node, Any]] = {}
    for _, family in itertools.groupby(cases.TABLE.values(), type):
        some: tuple[Case, ...] = tuple(itertools.islice(family, 100))
        for case in some:
            model = write((case,))
            if model.ops & found.keys() == model.ops:
                continue
            reader = Curious()
            running = RUNTIME.Interpreter(
                model_content=model.content, experimental_delegates=[reader]
            )
            graph, *_ = reader.found  # then those that it runs
            for node in graph.nodes:
                found.setdefault(node.op, (graph, node, running))
    return found


@pytest.mark.parametrize(("op", "name", "wrong"), CLAIMS)
def test_other_values_are_refused_by_name(
    op: str, name: str, wrong: Any, accepted: dict[str, tuple[Graph, Node, Any]]
) -> None:
    graph, node, _ = accepted[op]
    assert node.index not in check_support(graph).reasons
    changed = replace(node, params={**node.params, name: wrong})
    nodes = tuple(changed if each is node else each for each in graph.nodes)
    reason = check_support(replace(graph, nodes=nodes)).reasons[node.index]
    assert str(wrong).lower() in reason.lower()
    assert name.split("_")[0].replace("filter", "kernel") in reason


@pytest.mark.parametrize("op", [op.name for op in all_ops() if op.name in PARAMS])
def test_accepted_nodes_have_the_values_that_are_listed(
    op: str, accepted: dict[str, tuple[Graph, Node, Any]]
) -> None:
    found = find(op)
    assert found is not None
    for name, value in accepted[op][1].params.items():
        rule = attributes.values(found, name)
        assert not rule.allowed or value in rule.allowed
        assert rule.least is None or value >= rule.least


def test_rules_are_for_attributes_that_exist() -> None:
    known = {name for fields in PARAMS.values() for name, _ in fields}
    assert attributes.USUAL.keys() <= known
    for op in all_ops():
        assert op.accepts.keys() <= {name for name, _ in PARAMS.get(op.name, ())}, op.name
