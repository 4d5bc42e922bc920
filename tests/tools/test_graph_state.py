"""All tensors and nodes of an interpreter, printed by benchmark_model as text and as data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.runtime_abi.interpreter import interpreter
from litegpu.tools import cli
from litegpu.tools.benchmark_model.graph_state import NodeState, execution_plan, read_state
from litegpu.tools.benchmark_model.state_text import Lengths, state_text, type_name
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, chain, fully_convolutional, step, with_subgraphs
from wire_reader import parsed

QUICK = ("--num_runs=1", "--min_secs=0", "--warmup_min_secs=0", "--use_xnnpack=false")
GPU = (
    *("--use_gpu=true", "--gpu_precision_loss_allowed=false", "--min_nodes_per_partition=1"),
    "--max_delegated_partitions=1",
)


@pytest.fixture
def shared(tmp_path: Path) -> str:
    """A file with a node in the middle that stays on the CPU, and without constants."""
    path, writer, shape = tmp_path / "model.tflite", ModelWriter(), (1, 4, 4, 4)
    x = step(writer, "ABS", writer.input(shape))
    options = {"fused_activation_function": "SIGN_BIT"}
    y = writer.op(CPU_ONLY, [x, x], [shape], options=options)
    writer.output(step(writer, "LOGISTIC", y))
    path.write_bytes(writer.build())
    return str(path)


def benchmark(model: str, *flags: str) -> int:
    return cli.main(["benchmark", model, *QUICK, *GPU, *flags])


def test_the_state_is_printed_before_and_after(
    shared: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(shared, "--print_preinvoke_state", "--print_postinvoke_state") == 0
    text = capsys.readouterr().out
    for when, before, after in (
        ("pre", "Initialized session", "Running benchmark"),
        ("post", "Inference timings", "Computed by"),
    ):
        title = f"====Printing out TfLite interpreter {when}-invoke state"
        begin, end = (
            text.index(f"INFO: \n{title} begins===="),
            text.index(f"INFO: {title} ends===="),
        )
        assert text.index(before) < begin < end < text.rindex(after)
    start = text.index("Interpreter has 1 subgraphs.")
    lines = text[start : text.index("INFO: ====", start)].splitlines()
    name = lines[7].split()[2]
    assert [line.replace(name, "NAME") for line in lines[:8]] == [
        "Interpreter has 1 subgraphs.",
        "",
        "-----------Subgraph-0 has 4 tensors and 4 nodes------------",
        "1 Inputs: [0] -> 256B (0.00MB)",
        "1 Outputs: [3] -> 256B (0.00MB)",
        "",
        "Tensor  ID Name                      Type            AllocType          Size (Bytes/MB) "
        "   Shape      MemAddr-Offset",
        "Tensor   0 NAME".ljust(11 + 25 + len("NAME") - len(name))
        + " kTfLiteFloat32  kTfLiteArenaRw     256      / 0.00 [1,4,4,4] [-1, -1)",
    ]
    kernel = re.search(r"^  Node (\d+) is a TfLiteGpuDelegateV2 node, which", text, re.MULTILINE)
    assert kernel and kernel[1] == "3"
    assert lines[-12:] == [
        "Node   2 Operator Builtin Code  14 LOGISTIC (not delegated)",
        "  1 Input Tensors:[2] -> 256B (0.00MB)",
        "  1 Output Tensors:[3] -> 256B (0.00MB)",
        "Node   3 Operator Custom Name TfLiteGpuDelegateV2",
        "  1 Input Tensors:[0] -> 256B (0.00MB)",
        "  1 Output Tensors:[1] -> 256B (0.00MB)",
        "",
        "Execution plan as the list of 3 nodes invoked in-order: [3,1,2]",
        "Among these nodes in the execution plan:",
        "  Node 3 is a TfLiteGpuDelegateV2 node, which has delegated 1 nodes: [0]",
        "--------------Subgraph-0 dump has completed--------------",
        "",
    ]
    assert "Node   0 Operator Builtin Code 101 ABS (delegated by node 3)" in lines


def test_columns_have_their_lengths(shared: str, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ("tensor_name", "tensor_type", "alloc_type")
    flags = [
        f"--{name}_display_length={size}" for name, size in zip(lengths, (4, 10, 3), strict=True)
    ]
    assert benchmark(shared, "--print_preinvoke_state=true", *flags) == 0
    text = capsys.readouterr().out
    assert re.search(r"\nTensor   0 .{4} \.\.\.Float32 \.\.\. 256 ", text)
    assert benchmark(shared, "--tensor_name_display_length=0") == 2
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err


def test_the_state_for_programs(
    shared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "state.pb"
    flags = ("--export_model_runtime_info", f"--model_runtime_info_output_file={target}")
    assert benchmark(shared, *flags) == 0
    assert f"INFO: Generated model runtime info: {target}\n" in capsys.readouterr().out
    whole = [*parsed(target.read_bytes())]
    assert [number for number, _ in whole] == [1, 2] and whole[0][1] == b"model"
    graph = [*parsed(whole[1][1])]
    edges = [dict(parsed(value)) for number, value in graph if number == 2]
    nodes = [dict(parsed(value)) for number, value in graph if number == 3]
    rest = {number: value for number, value in graph if number not in (2, 3)}
    assert rest[1] == 0 and rest[4] == bytes([3, 1, 2]) and rest[5] == 1
    assert [edge[1] for edge in edges] == [0, 1, 2, 3]
    assert {edge[3] for edge in edges} == {1} and {edge[7] for edge in edges} == {256}
    assert edges[0][4] == bytes([1, 4, 4, 4]) and edges[0][5] == b"kTfLiteArenaRw"
    assert [(node[1], node[2], node[3]) for node in nodes] == [
        (0, b"ABS", b"101"),
        (1, CPU_ONLY.encode(), nodes[1][3]),
        (2, b"LOGISTIC", b"14"),
        (3, b"TfLiteGpuDelegateV2", b"TfLiteGpuDelegateV2"),
    ]
    assert nodes[0][9] == 3 and 9 not in nodes[1]
    assert dict(parsed(nodes[3][8])) == {1: b"TfLiteGpuDelegateV2", 2: bytes([0])}


def test_the_state_without_a_file_is_text(shared: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(shared, "--export_model_runtime_info") == 0
    text = capsys.readouterr().out
    assert 'INFO: model_name: "model"\nsubgraphs {\n  subgraph_id: 0\n  edges {\n' in text
    assert "    data_type: FLOAT32\n    shape: 1\n    shape: 4\n" in text
    assert "  subgraph_type: TFLITE_SUBGRAPH\n" in text
    assert benchmark(shared, "--model_runtime_info_output_file=no/where.pb") == 1
    assert "no/where.pb: the file cannot be written" in capsys.readouterr().err
    assert benchmark(shared, "--model_runtime_info_output_file=unused.pb") == 0
    assert "`--export_model_runtime_info=true` must be set for" in capsys.readouterr().out
    assert not Path("unused.pb").exists()


# Parts


def state_of(model: bytes, **options: Any) -> Any:
    target = interpreter(model, **options)
    return read_state(target, model, {}, "Other")


def test_graphs_behind_the_first_are_as_in_the_file() -> None:
    first, second = state_of(with_subgraphs(chain(["ABS"]), chain(["LOGISTIC", "ABS"])))
    assert [node.name for node in second.nodes] == ["LOGISTIC", "ABS"]
    assert (first.plan, second.plan) == ((0,) if len(first.nodes) == 1 else (1,), (0, 1))


def test_where_tensors_lie_and_what_they_take() -> None:
    (graph,) = state_of(fully_convolutional(), builtin_kernels=True)
    for tensor in graph.tensors:
        assert tensor.allocation in ("kTfLiteMmapRo", "kTfLiteArenaRw")
        if tensor.kind == "FLOAT32":
            assert tensor.bytes == 4 * int(np.prod(tensor.shape))
    assert {tensor.allocation for tensor in graph.tensors} == {"kTfLiteMmapRo", "kTfLiteArenaRw"}
    assert graph.size([-1, *graph.inputs]) == graph.tensors[graph.inputs[0]].bytes


def test_resized_tensors_have_their_new_shape() -> None:
    model = chain(["ABS"])
    target = interpreter(model, builtin_kernels=True)
    target.resize_tensor_input(target.get_input_details()[0]["index"], [3, 4, 4, 4])
    target.allocate_tensors()
    (graph,) = read_state(target, model, {}, "Other")
    assert {tensor.shape for tensor in graph.tensors} == {(3, 4, 4, 4)}
    assert {tensor.bytes for tensor in graph.tensors} == {768}


def test_a_constant_of_another_type() -> None:
    writer = ModelWriter()
    indices = writer.input((4,), "int32")
    table = writer.constant(np.ones((3, 2), np.float32))
    writer.output(writer.op("GATHER", [table, indices], [(4, 2)], options={"axis": 0}))
    (graph,) = state_of(writer.build(), builtin_kernels=True)
    text = state_text([graph], Lengths())
    assert re.search(r"kTfLiteInt32 +kTfLiteArenaRw +16 +/ 0\.00 \[4\] ", text)
    assert re.search(r"kTfLiteFloat32 +kTfLiteMmapRo +24 +/ 0\.00 \[3,2\] ", text)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("FLOAT32", "Float32"), ("BFLOAT16", "BFloat16"), ("UINT8", "UInt8"), ("INT4", "Int4")),
        *(("BOOL", "Bool"), ("COMPLEX64", "Complex64"), ("STRING", "String")),
    ],
)
def test_names_of_types(kind: str, name: str) -> None:
    assert type_name(kind) == f"kTfLite{name}"


def node(index: int, takes: tuple[int, ...], makes: int, **more: Any) -> NodeState:
    return NodeState(index, "ADD", 0, takes, (makes,), **more)


def test_plans() -> None:
    straight = [node(0, (0, -1), 1), node(1, (1,), 2), node(2, (2, 1), 3)]
    assert execution_plan(straight) == (0, 1, 2)
    # A kernel that stands for 0 and 2, and needs 1.
    replaced = [
        node(0, (0,), 1, delegated_to=3),
        node(1, (0,), 2),
        node(2, (1, 2), 3, delegated_to=3),
        NodeState(3, "Kernel", None, (0, 2), (3,), replaces=(0, 2)),
    ]
    assert execution_plan(replaced) == (1, 3)
    assert execution_plan([]) == ()
