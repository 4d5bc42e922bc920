"""Advice: reasons why a model is not on the GPU, and settings that cost time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litegpu import GpuDelegate
from litegpu.delegation import advice
from litegpu.delegation.report import Advice
from litegpu.errors import InterpreterError
from litegpu.graph import Graph, Node, Quantization
from litegpu.graph.partition import PartitionChoice, Subset
from litegpu.ops.common.support import SupportCheck
from litegpu.runtime_abi import bridge
from litegpu.tools import cli
from litegpu.wording import about, counted
from litegpu.zoo.writer import ModelWriter, TensorRef
from loop_models import recurrent
from small_models import (
    CPU_ONLY,
    WHY_ON_CPU,
    assert_close,
    chain,
    convolution,
    interpreter,
    random,
    reference,
    run,
    step,
    with_subgraphs,
)

LARGE = (1, 64, 64, 32)


def advice_on(model: bytes, **options: Any) -> tuple[Advice, ...]:
    """Return the advice of a delegate of any partition size at half precision."""
    delegate = GpuDelegate(**{"precision": "fp16", **options})
    running = interpreter(model, delegate)
    assert delegate.report is not None
    assert delegate.error is None
    del running
    return delegate.report.advice


def kinds(found: tuple[Advice, ...]) -> list[str]:
    return [advice.kind for advice in found]


def test_a_model_that_runs_whole_needs_none() -> None:
    assert advice_on(chain(["ABS", "EXP"], LARGE)) == ()


def test_one_operation_in_the_way() -> None:
    (found,) = advice_on(chain(["EXP", CPU_ONLY, "TANH"], LARGE), max_delegated_partitions=2)
    assert (found.kind, found.nodes) == ("blocker", (1,))
    assert found.text.startswith(
        f"{CPU_ONLY} (node 1): {WHY_ON_CPU}. Replacing it would put the whole graph "
        "on the GPU, saving about "
    )
    assert found.seconds is not None
    assert found.seconds > 0


def in_float64(writer: ModelWriter, x: TensorRef) -> TensorRef:
    """Add nodes that stay on the CPU, for another reason than CPU_ONLY."""
    return writer.op("CAST", [writer.op("CAST", [x], [x.shape], dtype="float64")], [x.shape])


def two_obstacles() -> bytes:
    """Node 1 separates more nodes than nodes 5 and 6 do."""
    writer = ModelWriter()
    x = writer.input(LARGE)
    y = step(writer, CPU_ONLY, convolution(writer, x, 32, seed=1))
    y = convolution(writer, convolution(writer, y, 32, seed=2), 32, seed=3)
    writer.output(y, in_float64(writer, step(writer, "NEG", x)))
    return writer.build()


def test_obstacles_come_by_what_each_saves_beside_those_before_it() -> None:
    found = advice_on(two_obstacles())
    assert kinds(found)[:2] == ["blocker", "blocker"]
    first, second = found[:2]
    assert first.nodes == (1,)
    assert "Replacing it would put 3 more nodes on the GPU" in first.text
    assert second.text.startswith("CAST x2 (nodes 5, 6): ")
    assert "too would put the whole graph on the GPU" in second.text


def test_an_obstacle_whose_end_saves_nothing_is_not_worth_advice() -> None:
    """Two tiny ops stay on the CPU; replacing only one does not make the graph whole."""
    writer = ModelWriter()
    x, small = writer.input(LARGE), writer.input((1, 2), name="small")
    rounded = step(writer, CPU_ONLY, small)
    far = in_float64(writer, step(writer, "COS", rounded))
    writer.output(convolution(writer, x, 32), far)
    assert advice_on(writer.build()) == ()


def test_nodes_that_wait_for_a_shape_count_for_what_they_wait_for() -> None:
    writer = ModelWriter()
    x = writer.input(LARGE)
    shape = writer.input((2,), "int32", name="shape")
    flat = writer.op("RESHAPE", [step(writer, "ABS", x), shape], [(-1, -1)])
    writer.output(step(writer, "NEG", step(writer, "EXP", flat)))
    (found,) = advice_on(writer.build())
    assert found.nodes == (1,)
    assert found.text.startswith("RESHAPE (node 1): ")
    assert "the whole graph" in found.text


def test_a_graph_that_the_runtime_cannot_divide_so_is_delegated_without_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In damaged models a node on the CPU may read a tensor that no node computes."""
    ask = bridge._preview

    def refusing(context: int) -> Callable[[Sequence[int]], list[Subset]]:
        preview = ask(context)

        def previewed(nodes: Sequence[int]) -> list[Subset]:
            if 1 in nodes:
                raise InterpreterError("Unable to preview delegate partition.")
            return preview(nodes)

        return previewed

    monkeypatch.setattr(bridge, "_preview", refusing)
    model, x = chain(["EXP", CPU_ONLY, "TANH"], LARGE), random(*LARGE)
    delegate = GpuDelegate(max_delegated_partitions=2)
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert delegate.error is None
    assert delegate.report is not None
    assert delegate.report.delegated_nodes == [0, 2]
    assert delegate.report.advice == ()


def int8(
    writer: ModelWriter, x: TensorRef, op: str, dtype: str, step: float = 1 / 256
) -> TensorRef:
    scale = Quantization((step,), (-128,))
    return writer.op(
        op,
        [x, x] if op == "DIV" else [x],
        [x.shape],
        dtype=dtype,
        quantization=scale if dtype == "int8" else None,
    )


def quantized_middle() -> bytes:
    """Nodes 1-4 compute with 8-bit integers; node 2 has a scale that only the CPU supports."""
    writer = ModelWriter()
    x = step(writer, "EXP", writer.input(LARGE))
    y = int8(writer, int8(writer, x, "QUANTIZE", "int8"), "DIV", "int8", 1e-30)
    y = int8(writer, int8(writer, y, "LOGISTIC", "int8"), "DEQUANTIZE", "float32")
    writer.output(step(writer, "TANH", y))
    return writer.build()


@pytest.mark.parametrize(
    ("flags", "nodes", "reason"),
    [
        (0, (1, 2, 3, 4), "8-bit tensors are left to the CPU: experimental_flags lacks"),
        (
            1,
            (2,),
            "The ratio of the scales is so large that the CPU shifts integers by 100 bits. With",
        ),
    ],
)
def test_quantized_nodes_are_one_obstacle(flags: int, nodes: tuple[int, ...], reason: str) -> None:
    options = {"max_delegated_partitions": 2, "experimental_flags": flags}
    (found,) = advice_on(quantized_middle(), **options)
    assert (found.kind, found.nodes) == ("quantized", nodes)
    assert f": {reason}" in found.text
    assert ('quantized="float"' in found.text) == bool(flags)
    assert "float16 weights" in found.text
    assert "the whole graph" in found.text


def test_the_flag_for_quantization_is_the_reason_where_it_is_missing() -> None:
    delegate = GpuDelegate(experimental_flags=0)
    interpreter(quantized_middle(), delegate)
    assert delegate.report is not None
    assert [node.index for node in delegate.report.rejected] == [1, 2, 3, 4]
    assert all("lacks ENABLE_QUANT (1)" in node.reason for node in delegate.report.rejected)


def test_dynamic_range_quantization_is_named() -> None:
    writer = ModelWriter()
    x = writer.input((1, 256))
    weights = random(256, 256).round().astype("int8")
    weights[0, 0] = -128  # whose products the CPU gets wrong
    packed = writer.constant(weights, quantization=Quantization((0.1,), (0,)))
    y = writer.op("FULLY_CONNECTED", [x, packed, None], [(1, 256)], version=3)
    writer.output(step(writer, "TANH", y))
    (found,) = advice_on(writer.build())
    assert (found.kind, found.nodes) == ("weights", (0,))
    assert "dynamic-range quantization" in found.text


def test_more_partitions_where_they_save_time() -> None:
    shape = (1, 128, 128, 32)
    writer = ModelWriter()
    y = writer.input(shape)
    for seed in range(3):
        y = step(writer, CPU_ONLY, convolution(writer, y, 32, seed=seed))
    writer.output(y)
    model = writer.build()
    advice = advice_on(model, max_delegated_partitions=1)
    limited = [each for each in advice if each.kind == "partitions"]
    assert len(limited) == 1
    assert limited[0].text.startswith("max_delegated_partitions=3 would put 2 more nodes on the")
    assert limited[0].nodes == (2, 4)
    assert "partitions" not in kinds(advice_on(model, max_delegated_partitions=3))
    assert "partitions" not in kinds(advice_on(chain(["ABS", CPU_ONLY, "ABS"])))


def test_kernels_that_are_there_to_move_data() -> None:
    writer = ModelWriter()
    x = convolution(writer, writer.input(LARGE), 32, seed=1)
    y = writer.op("SPACE_TO_DEPTH", [x], [(1, 32, 32, 128)], options={"block_size": 2})
    y = convolution(writer, step(writer, "TANH", y), 128, seed=2)
    y = writer.op("DEPTH_TO_SPACE", [y], [LARGE], options={"block_size": 2})
    writer.output(convolution(writer, y, 32, seed=3))
    (found,) = advice_on(writer.build())
    assert found.kind == "moves"
    assert "2 of 5 kernels are there to move data: " in found.text
    assert "SPACE_TO_DEPTH (1.0 MiB)" in found.text
    assert "DEPTH_TO_SPACE (1.0 MiB)" in found.text
    assert found.seconds is not None
    assert "moves" not in kinds(advice_on(chain(["EXP", "TANH"], LARGE)))


def test_rows_that_a_loop_moves_are_not_the_models_choice() -> None:
    writer = ModelWriter()
    x = writer.input((4, 1, 5))
    writer.output(recurrent(writer, x, 6, gru=False, backward=False, seed=1))
    model = writer.build()
    delegate = GpuDelegate(model=model)
    running = interpreter(model, delegate)
    assert delegate.report is not None and delegate.report.whole_graph
    assert "moves" not in kinds(delegate.report.advice)
    del running


@pytest.mark.parametrize(("channels", "share"), [(5, 0.3), (8, 0.0)])
def test_channels_that_need_padding(channels: int, share: float) -> None:
    writer = ModelWriter()
    y = writer.input((1, 16, 16, 4))
    for seed in range(4):
        y = convolution(writer, y, channels, seed=seed)
    writer.output(convolution(writer, y, 4, seed=9))
    found = advice_on(writer.build())
    assert kinds(found) == (["lanes"] if share else [])
    if share:
        assert found[0].nodes == (0, 1, 2, 3)
        assert "5 channels stored as 8 (4 values)" in found[0].text
        assert int(found[0].text.split("%")[0]) == pytest.approx(100 * share, abs=5)


def test_half_precision_where_there_are_many_weights() -> None:
    writer = ModelWriter()
    x = writer.input((1, 1024))
    weights = writer.weights(random(512, 1024), name="weights")
    writer.output(writer.op("FULLY_CONNECTED", [x, weights, None], [(1, 512)]))
    model = writer.build()
    (found,) = advice_on(model, precision="fp32")
    assert found.kind == "precision"
    assert found.text.startswith('precision="fp16" would store 2.0 MiB of weights as float16')
    assert advice_on(model) == ()


def test_half_precision_where_there_are_large_values() -> None:
    model = chain(["EXP", CPU_ONLY, "TANH"], (1, 256, 256, 32))
    found = advice_on(model, precision="fp32", max_delegated_partitions=2)
    assert found[-1].kind == "precision"
    assert found[-1].text.startswith('precision="fp16" would store 32.0 MiB of values as float16')


def byte_weights() -> bytes:
    """Quantized weights, of which float32 would take 2 MiB, of a layer on int8 tensors."""
    writer = ModelWriter()
    scale = Quantization((0.1,), (0,))
    x = int8(writer, writer.input((1, 1024)), "QUANTIZE", "int8")
    weights = random(512, 1024).round().clip(-127, 127).astype("int8")
    packed = writer.constant(weights, quantization=scale)
    y = writer.op(
        "FULLY_CONNECTED", [x, packed, None], [(1, 512)], dtype="int8", quantization=scale
    )
    writer.output(int8(writer, y, "DEQUANTIZE", "float32"))
    return writer.build()


@pytest.mark.parametrize(("quantized", "expected"), [("exact", []), ("float", ["precision"])])
def test_half_precision_is_for_floats(quantized: str, expected: list[str]) -> None:
    """Integers are computed as integers at any precision; only floats may be stored as half."""
    assert kinds(advice_on(byte_weights(), precision="fp32", quantized=quantized)) == expected


def test_a_node_that_no_way_to_compute_integers_can_run_gives_its_reason() -> None:
    writer = ModelWriter()
    x = int8(writer, step(writer, "EXP", writer.input(LARGE)), "QUANTIZE", "int8")
    scale = Quantization((1 / 256,), (-128,))
    options = {"fused_activation_function": "SIGN_BIT"}
    y = writer.op("MUL", [x, x], [LARGE], dtype="int8", quantization=scale, options=options)
    writer.output(int8(writer, y, "DEQUANTIZE", "float32"))
    (found,) = advice_on(writer.build(), max_delegated_partitions=2)
    assert found.nodes == (2,)
    assert "Fused activation sign_bit of quantized tensors. " in found.text
    assert "quantized=" not in found.text


def test_check_ends_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["EXP", CPU_ONLY, "TANH"], LARGE))
    assert cli.main(["check", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"\nadvice (times are estimates for a GPU)\n  1. {CPU_ONLY} (node 1): " in text
    assert max(map(len, text[text.index("advice") :].splitlines())) <= 120
    assert cli.main(["check", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["advice"][0]["kind"] == "blocker"
    assert report["advice"][0]["nodes"] == [1]
    path.write_bytes(chain(["EXP", "TANH"]))
    assert cli.main(["check", str(path)]) == 0
    assert capsys.readouterr().out.endswith("\nadvice: none\n")


def test_check_has_advice_on_each_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(with_subgraphs(chain(["EXP"]), chain(["EXP", CPU_ONLY, "TANH"], LARGE)))
    assert cli.main(["check", str(path)]) == 0
    text = capsys.readouterr().out
    assert "\nadvice: none\n\nadvice on subgraph 1 (times are estimates for a GPU)\n  1. " in text


# Sentences


class Guess:
    """A partition selection with random choices and estimates."""

    def __init__(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(2, 12), label="nodes")
        reasons = data.draw(st.dictionaries(st.integers(0, size - 1), REASONS), label="reasons")
        nodes = [Node(index, data.draw(OPS), 1, (), ()) for index in range(size)]
        graph = Graph({}, tuple(nodes), (), ())
        self._data, self._size = data, size
        self.support = SupportCheck(graph, reasons)
        self.costs = self

    def choose(self, more: object = (), limit: object = None) -> PartitionChoice:
        nodes = self._data.draw(st.sets(st.integers(0, self._size - 1)), label="chosen")
        parts = self._data.draw(st.integers(1, 3))
        chosen = [tuple(sorted(nodes))[index::parts] for index in range(parts)]
        left = ((Subset((0,), (), ()), "It is small."),) if self._data.draw(st.booleans()) else ()
        return PartitionChoice(tuple(Subset(each, (), ()) for each in chosen if each), left)

    def invoke_seconds(self, chosen: object) -> float:
        exponent = self._data.draw(st.floats(-9, 1), label="seconds")
        return float(10**exponent) if self._data.draw(st.booleans()) else 0.0


OPS = st.sampled_from(["ABS", "CONV_2D", "QUANTIZE", "MatrixDiag"])
REASONS = st.sampled_from(["Operation is not supported.", "tensor 7 is UINT8", "strides 3, 2."])
NUMBER = r"(?:[2-9]|[1-9]\d+)"
TIME = r"(?:about \d+(?:\.\d)? (?:us|ms|s))"
SENTENCE = re.compile(
    rf"(?:[\w ,]+ \((?:node \d+|nodes (?:\d+(?:, | and )?)+(?:\d+ more)?)\): [^-]+?\. Replacing "
    rf"(?:it|them)(?: too)? would put (?:the whole graph|1 more node|{NUMBER} more nodes|other "
    rf"parts of the graph \((?:1 node|{NUMBER} nodes) in place of \d+\)) on the GPU|"
    rf"max_delegated_partitions={NUMBER} would put (?:1 more node|{NUMBER} more nodes) on the GPU)"
    rf", (?:without saving time|saving {TIME} per invoke)\."
)


@settings(max_examples=200)
@given(st.data())
def test_every_sentence_is_one_that_a_person_would_say(data: st.DataObject) -> None:
    guess: Any = Guess(data)
    choice = guess.choose()
    for found in (*advice._on_blockers(guess, choice, ()), *advice._on_limit(guess, choice)):
        assert SENTENCE.fullmatch(found.text.replace("8-bit", "8 bit")), found.text
        assert found.seconds is not None and found.seconds >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "less than 1 us"), (9e-7, "less than 1 us"), (1e-6, "about 1.0 us"), (1, "about 1.0 s")],
)
def test_nothing_is_about_less_than_something(seconds: float, text: str) -> None:
    assert about(seconds) == text


def test_one_of_a_thing_is_no_more() -> None:
    assert [counted(number, "more node") for number in (1, 2)] == ["1 more node", "2 more nodes"]
