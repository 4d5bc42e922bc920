"""Node data for Model Explorer: format, keys and values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from litegpu.tools import cli
from litegpu.zoo import objects
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, WHY_ON_CPU, chain, fully_convolutional, step, with_subgraphs

GRAPH_KEYS = {"name", "results", "gradient", "thresholds"}
"""What a graph's data may hold, of what is used here."""


def exported(command: list[str], path: Path) -> dict[str, Any]:
    """Return what a tool exports, after a look at its form."""
    assert cli.main([*command, f"--export={path}"]) == 0
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for graph in found.values():
        assert set(graph) <= GRAPH_KEYS
        assert all(key.isdigit() for key in graph["results"])
        assert all(set(each) <= {"value", "bgColor"} for each in graph["results"].values())
    return found


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["SIN", CPU_ONLY, "ABS"]))
    return str(path)


def test_check_exports_where_nodes_run(model: str, tmp_path: Path) -> None:
    command = ["check", model, "--max_delegated_partitions=2"]
    found = exported(command, tmp_path / "data.json")
    assert list(found) == ["main"]
    values = {node: each["value"] for node, each in found["main"]["results"].items()}
    assert values["0"] == "on the GPU, partition 0"
    assert values["1"].startswith(f"on the CPU: {WHY_ON_CPU}")
    assert values["2"] == "on the GPU, partition 1"
    colours = {each["bgColor"] for each in found["main"]["results"].values()}
    assert len(colours) == 3


def test_profile_exports_times(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(fully_convolutional())
    found = exported(["profile", str(path), "--repeats=1"], tmp_path / "data.json")
    results = found["main"]["results"]
    assert list(results) == ["0", "1", "2"], "LOGISTIC is fused into node 2"
    assert all(each["value"] > 0 for each in results.values())
    assert [stop["stop"] for stop in found["main"]["gradient"]] == [0, 1]


def test_inference_diff_exports_errors(model: str, tmp_path: Path) -> None:
    command = ["inference_diff", model, "--delegate=gpu", "--num_runs=1", "--per_node"]
    found = exported(command, tmp_path / "data.json")
    results = found["main"]["results"]
    assert list(results) == ["0", "1", "2"]
    assert results["0"]["value"] < 0.01
    assert results["1"]["value"] == 0, "the same kernel on the same values"


def test_graphs_have_the_names_that_model_explorer_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    for names, expected in (
        (("", "", ""), ["signed", "subgraph_1", "subgraph_2"]),
        (("its own", "", "its own"), ["its own", "subgraph_1"]),
    ):
        path.write_bytes(three_graphs(names))
        found = exported(["check", str(path)], tmp_path / "data.json")
        assert list(found) == expected
        assert found[expected[0]]["results"]["0"]["value"] == "on the GPU, partition 0"


def three_graphs(names: Sequence[str]) -> bytes:
    """Return a model of three graphs with these names; the first one has a signature."""
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 4), name="x")
    y = step(writer, "SIN", x, name="y")
    writer.output(y)
    writer.signature("signed", {"x": x}, {"y": y})
    model = objects.parse(with_subgraphs(writer.build(), chain(["COS"]), chain(["ABS"])))
    for graph, name in zip(model.subgraphs, names, strict=True):
        graph.name = name.encode()
    return objects.pack(model)


def test_errors_by_node_must_be_asked_for(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.json"
    assert cli.main(["inference_diff", model, f"--export={path}"]) == 2
    assert (
        f"--export={path} contains the error of each node: give --per_node"
        in capsys.readouterr().err
    )
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_told_first(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "data.json"
    for tool in (["check"], ["profile"], ["inference_diff", "--per_node"]):
        assert cli.main([*tool, model, f"--export={path}"]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert f"--export={path}: the file cannot be written" in captured.err
