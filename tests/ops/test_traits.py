"""The traits that ops declare are true for the nodes of every case."""

from __future__ import annotations

import contextlib
import math
from typing import NoReturn
from unittest import mock

import numpy as np
import pytest

from cases import TABLE
from litegpu import GpuDelegate
from litegpu.engine import partition
from litegpu.errors import CompilationError, ModelError
from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import Op, all_facts, all_ops, facts_of, has
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import Window
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.runtime_abi import interpreter as runtime
from op_runner import groups, write
from paper_device import on_paper


@pytest.fixture(scope="module")
def nodes() -> list[tuple[Graph, Node]]:
    """Return the nodes that the ops make of all cases, each with its graph.

    Nothing that comes after is of interest: no partition is compiled.
    """
    found: list[Graph] = []
    normalize = partition.normalize

    def noted(graph: Graph) -> NoReturn:
        found.append(normalize(graph))
        raise CompilationError("enough is known")

    with mock.patch.object(partition, "normalize", noted), on_paper():
        delegate = GpuDelegate(backend="opencl", inference_preference=0)
        for group in groups(TABLE):
            with contextlib.suppress(ModelError):  # a graph with variables runs whole, or not
                runtime.interpreter(write(group).content, delegate, builtin_kernels=True)
    return [(graph, node) for graph in found for node in graph.nodes]


def test_windows_are_where_passes_look_for_them(nodes: list[tuple[Graph, Node]]) -> None:
    found = [node for _, node in nodes if has(node, Trait.WINDOWED)]
    assert len({node.op for node in found}) == 6
    assert all(isinstance(node.attributes.window, Window) for node in found)


def test_weights_are_where_passes_look_for_them(nodes: list[tuple[Graph, Node]]) -> None:
    found = [(graph, node) for graph, node in nodes if has(node, Trait.WEIGHTED)]
    assert len({node.op for _, node in found}) == 5
    for graph, node in found:
        assert node.attributes.weights in graph.values
        assert node.attributes.bias in {*graph.values, ABSENT}


def test_contractions_have_their_weights_by_outputs(nodes: list[tuple[Graph, Node]]) -> None:
    found = [(graph, node) for graph, node in nodes if has(node, Trait.CONTRACTION)]
    assert len({node.op for _, node in found}) == 2
    for graph, node in found:
        attributes = node.attributes
        assert isinstance(attributes, ConvAttributes)
        weights = graph.values[attributes.weights]
        assert not weights.is_constant or weights.elements == math.prod(attributes.shape)
        assert graph.values[node.outputs[0]].shape[-1] == attributes.shape[0]


@pytest.mark.parametrize(
    ("trait", "method"),
    [(Trait.HOLDS_INPUTS, "input_storages"), (Trait.VIEWS_INPUT, "result_storage")],
    ids=["holds_inputs", "lies_in_input"],
)
def test_what_takes_no_kernel_tells_where_it_lies(trait: Trait, method: str) -> None:
    stated = {op.name for op in all_ops() if trait in op.traits}
    assert stated
    assert stated <= {
        op.name for op in all_ops() if getattr(type(op), method) is not getattr(Op, method)
    }


def test_few_operations_alone_make_shapes_that_nobody_knows_before() -> None:
    """What comes after these stays on the CPU, and after no other."""
    by_values = {"SEGMENT_SUM", "SKIP_GRAM", "UNIQUE", "WHERE"}
    by_other_graphs = {"IF", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE", "WHILE"}
    unknown = {facts.name for facts in all_facts() if facts.shape_unknown}
    assert unknown == by_values | by_other_graphs


def test_nothing_is_said_of_what_is_not_known() -> None:
    node = Node(0, "NO_SUCH_OPERATION", 1, (1, 2), (3,))
    assert not any(has(node, trait) for trait in Trait)
    facts = facts_of(node.op)
    assert facts.fold(Graph({}, (node,), (), ()), node, [np.zeros(1)] * 2) is None
    assert facts.states(node) == ()
    assert (facts.launches, facts.shape_operands, facts.shape_unknown) == (1, (), False)
