"""The work of nodes, estimated from their shapes."""

from __future__ import annotations

from typing import Any

import pytest

from litegpu import GpuDelegate, zoo
from litegpu.graph import ABSENT, DType, Graph, Node, Value
from litegpu.ops.common.dynamic import UNKNOWN
from litegpu.ops.common.support import SupportCheck, check_support
from litegpu.ops.common.work import Work, states_of, work_of
from small_models import interpreter

pytestmark = pytest.mark.usefixtures("null_device")

Shape = tuple[int, ...]


def graph_of(op: str, inputs: list[Shape | None], output: Shape, **params: Any) -> Graph:
    """Return a graph of one node; None stands for an operand that is left out."""
    shapes = [*inputs, output]
    values = {
        v: Value(v, "", shape, DType.FLOAT32) for v, shape in enumerate(shapes) if shape is not None
    }
    positions = tuple(ABSENT if shape is None else v for v, shape in enumerate(inputs))
    return Graph(values, (Node(0, op, 1, positions, (len(inputs),), params),), (), ())


def work(op: str, inputs: list[Shape | None], output: Shape, **params: Any) -> Work:
    graph = graph_of(op, inputs, output, **params)
    return work_of(graph, graph.nodes[0])


WEIGHTS: list[tuple[str, list[Shape | None], Shape, int, dict[str, Any]]] = [
    ("CONV_2D", [(1, 8, 6, 3), (5, 3, 2, 3), (5,)], (1, 4, 3, 5), 12 * 5 * 3 * 2 * 3, {}),
    ("CONV_2D", [(1, 8, 6, 4), (6, 3, 3, 2)], (1, 8, 6, 6), 48 * 6 * 9 * 2, {}),  # two groups
    ("DEPTHWISE_CONV_2D", [(2, 8, 6, 3), (1, 3, 3, 6), None], (2, 8, 6, 6), 96 * 6 * 9, {}),
    ("FULLY_CONNECTED", [(4, 10), (7, 10), None], (4, 7), 4 * 70, {}),
    ("TRANSPOSE_CONV", [(4,), (5, 2, 2, 3), (1, 4, 4, 3)], (1, 8, 8, 5), 16 * 5 * 4 * 3, {}),
    ("BATCH_MATMUL", [(2, 3, 4), (2, 4, 5)], (2, 3, 5), 2 * 3 * 4 * 5, {"adj_x": False}),
    ("BATCH_MATMUL", [(2, 4, 3), (2, 4, 5)], (2, 3, 5), 2 * 3 * 4 * 5, {"adj_x": True}),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", [(6, 2, 3), None, *[(4, 3)] * 3], (6, 2, 4), 12 * 36, {}),
    ("SVDF", [(2, 3), (8, 3), (8, 5)], (2, 4), 2 * (24 + 40), {}),
]


@pytest.mark.parametrize(("op", "inputs", "output", "products", "params"), WEIGHTS)
def test_multiply_adds(
    op: str, inputs: list[Shape | None], output: Shape, products: int, params: dict[str, Any]
) -> None:
    assert work(op, inputs, output, **params).flops == 2 * products


def test_everything_else() -> None:
    assert work("ADD", [(2, 3), (3,)], (2, 3)) == Work(6, 4 * (6 + 3 + 6), 0)
    assert work("MEAN", [(1, 8, 8, 3), (2,)], (1, 3)).flops == 192
    pool = work("MAX_POOL_2D", [(1, 8, 8, 3)], (1, 4, 4, 3), filter_height=2, filter_width=3)
    assert pool == Work(48 * 6, 4 * (192 + 48), 1)
    assert work("RESHAPE", [(2, 3), (1,)], (6,)).launches == 0


def test_what_is_not_known_counts_nothing() -> None:
    """Such nodes stay on the CPU, but advice is about them too."""
    assert work("CONV_2D", [UNKNOWN, (5, 3, 3, 2)], UNKNOWN) == Work(0, 4 * 90, 1)
    assert work("CONV_2D", [(1, 2, 2, 2)], (1, 2, 2, 2)).flops == 0
    assert work("BATCH_MATMUL", [], (3, 3)).flops == 0
    few = graph_of("UNIDIRECTIONAL_SEQUENCE_LSTM", [(1, 2, 3)], (1, 2, 4))
    assert states_of(few.nodes[0]) == ()
    missing = Graph({}, (Node(0, "ADD", 1, (4, 5), (6,)),), (), ())
    assert work_of(missing, missing.nodes[0]) == Work(0, 0, 0)


def test_a_network_of_known_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """MobileNet v1 (1.0, 224) is known to take 569 million multiply-adds."""
    graphs = []

    def noted(*args: Any, **options: Any) -> SupportCheck:
        found = check_support(*args, **options)
        graphs.append(found.graph)
        return found

    monkeypatch.setattr("litegpu.ops.common.support.check_support", noted)
    interpreter(zoo.load("zoo:mobilenet_v1_1.0_224"), GpuDelegate(last_delegate_node_index=0))
    total = sum(work_of(graphs[0], node).flops for node in graphs[0].nodes)
    assert total == pytest.approx(2 * 569e6, rel=0.01)
