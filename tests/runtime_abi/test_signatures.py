"""Models called by signature, with one or several delegates, and copies of delegates."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from litegpu import GpuDelegate, GpuDelegateOptions
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.engine.compiled import CompiledPartition
from litegpu.graph import Graph
from litegpu.options import Precision
from litegpu.runtime_abi import bridge
from litegpu.zoo.writer import ModelWriter
from small_models import (
    CPU_ONLY,
    Array,
    assert_close,
    chain,
    in_threads,
    interpreter,
    random,
    reference,
    run,
    step,
    with_subgraphs,
)

WEIGHTS = random(64, 64, seed=7)


def one_signature(key: str, *steps: str) -> bytes:
    """Return a model of a FULLY_CONNECTED and some steps, for any number of rows."""
    writer = ModelWriter()
    x = writer.input((-1, 64))
    y = writer.op("FULLY_CONNECTED", [x, writer.weights(WEIGHTS, name="w"), None], [(-1, 64)])
    for op in steps:
        y = step(writer, op, y)
    writer.output(y)
    writer.signature(key, {"x": x}, {"y": y})
    return writer.build()


def two_signatures() -> bytes:
    """Return a model with `encode` and `decode`, which share their weights and end differently."""
    encode, decode = one_signature("encode", "TANH"), one_signature("decode", CPU_ONLY, "ABS")
    model = with_subgraphs(encode, decode)
    assert len(model) < len(encode) + WEIGHTS.nbytes, "the weights are not shared"
    return model


EXPECTED: dict[str, Callable[[Array], Array]] = {
    "encode": lambda x: np.tanh(x @ WEIGHTS.T),
    "decode": lambda x: np.abs(x @ WEIGHTS.T),
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_two_signatures_that_share_weights(precision: Precision) -> None:
    delegate = GpuDelegate(precision=precision, max_delegated_partitions=2)
    target, cpu = interpreter(two_signatures(), delegate), interpreter(two_signatures())
    assert delegate.report is not None
    assert delegate.report.whole_graph
    assert [part.delegated_nodes for part in delegate.report.subgraphs] == [[0, 2]]
    runners = {key: target.get_signature_runner(key) for key in EXPECTED}
    references = {key: cpu.get_signature_runner(key) for key in EXPECTED}
    for seed, rows in enumerate((1, 1, 3, 2, 1)):
        x = random(rows, 64, seed=seed)
        for key, runner in runners.items():
            got, expected = runner(x=x)["y"], references[key](x=x)["y"]
            assert_close([expected], [EXPECTED[key](x)], 1e-5)
            assert_close([got], [expected], 1e-5 if precision == "fp32" else 1e-2)
    assert delegate.error is None


def test_signatures_share_the_arrays_of_large_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of the weights, such as their digest, are computed once for all signatures."""
    found: list[int] = []
    compile_here = PartitionKernel._compile

    def noted(self: PartitionKernel, graph: Graph) -> CompiledPartition:
        arrays = [value.data for value in graph.values.values() if value.data is not None]
        found.extend(id(array) for array in arrays if array.nbytes >= 1 << 12)
        return compile_here(self, graph)

    monkeypatch.setattr(PartitionKernel, "_compile", noted)
    monkeypatch.setattr("litegpu.runtime_abi.reader.LARGE", 1 << 12)
    target = interpreter(two_signatures(), delegate := GpuDelegate())
    assert len(delegate._kernels) == 2 and len(found) == 2 and len({*found}) == 1
    del target


def test_a_signature_runner_beside_plain_calls() -> None:
    """Both see the same tensors, whichever of them has resized the input last."""
    target = interpreter(one_signature("run", "TANH"), GpuDelegate())
    for seed, rows in enumerate((2, 1, 4)):
        x, other = random(rows, 64, seed=seed), random(rows + 1, 64, seed=seed)
        # The runtime resizes nothing itself as long as someone holds a runner.
        assert_close([target.get_signature_runner("run")(x=x)["y"]], [EXPECTED["encode"](x)])
        target.resize_tensor_input(0, other.shape)
        target.allocate_tensors()
        assert_close(run(target, other), [EXPECTED["encode"](other)])


def test_several_inputs_by_name() -> None:
    writer = ModelWriter()
    a, b = writer.input((1, 4), name="a"), writer.input((1, 4), name="b")
    total = writer.op("SUB", [a, b], [(1, 4)])
    writer.output(total)
    writer.signature("serving_default", {"left": a, "right": b}, {"difference": total})
    runner = interpreter(writer.build(), GpuDelegate()).get_signature_runner("serving_default")
    for rows in (1, 1, 3, 2):
        left, right = random(rows, 4, seed=1), random(rows, 4, seed=2)
        assert_close([runner(right=right, left=left)["difference"]], [left - right])


def test_several_delegates() -> None:
    """The first takes what its range of nodes allows, the second the rest of each subgraph."""
    first = GpuDelegate(last_delegate_node_index=0)
    second = GpuDelegate(max_delegated_partitions=9)
    target = interpreter(two_signatures(), first, second)
    for key, expected in EXPECTED.items():
        runner = target.get_signature_runner(key)
        for rows in (1, 3, 1):
            assert_close([runner(x=random(rows, 64))["y"]], [expected(random(rows, 64))])
    for delegate, chosen in ((first, [[0], [0]]), (second, [[1], [2]])):
        assert delegate.report is not None
        parts = (delegate.report, *delegate.report.subgraphs)
        assert [part.delegated_nodes for part in parts] == chosen


def test_threads_with_runners_of_one_delegate() -> None:
    model, delegate = two_signatures(), GpuDelegate()

    def work(seed: int) -> None:
        target = interpreter(model, delegate)
        for rows in (1, 2, 1, 3):
            for key, expected in EXPECTED.items():
                x = random(rows, 64, seed=seed)
                assert_close([target.get_signature_runner(key)(x=x)["y"]], [expected(x)])

    in_threads(work)


@pytest.mark.usefixtures("nothing_of_earlier_tests")
def test_dropping_a_model_with_subgraphs() -> None:
    live = bridge.live_kernels()
    target = interpreter(two_signatures(), GpuDelegate(max_delegated_partitions=9))
    assert bridge.live_kernels() == live + 3
    del target
    assert bridge.live_kernels() == live


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda delegate: pickle.loads(pickle.dumps(delegate))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_is_a_delegate_of_its_own(copied: Callable[[GpuDelegate], GpuDelegate]) -> None:
    options = GpuDelegateOptions(precision="fp16", max_delegated_partitions=3)
    first = GpuDelegate(options)
    model, x = chain(["ABS", "NEG"]), random(1, 4, 4, 4)
    running = interpreter(model, first)
    second = copied(first)
    assert second.options == options
    assert second.report is None
    del first
    assert_close(run(interpreter(model, second), x), reference(model, x), 5e-3)
    assert_close(run(running, x), reference(model, x), 5e-3)
    assert second.report is not None
