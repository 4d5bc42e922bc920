"""Pages for people: what every tool puts into them, and that they ask for nothing and run nothing.

How they look and work in a browser is in `test_reports_browser.py`.
"""

from __future__ import annotations

import html
import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import FileError, MissingDependencyError
from litegpu.tools import cli
from litegpu.tools.model_explorer import prepare_export
from litegpu.tools.reports import page as pages
from litegpu.tools.reports.accuracy import curve, gallery, node_error_section
from litegpu.tools.reports.charts import bars, histogram, lines
from litegpu.tools.reports.page import prepare_report, render, write_report
from litegpu.tools.reports.sections import (
    Chart,
    Drawing,
    Facts,
    Page,
    Picture,
    Section,
    Table,
    Text,
)
from litegpu.tools.reports.timing import energy_section, latency_sections, profile_sections
from litegpu.tools.sweep.advice import GOALS
from litegpu.tools.sweep.page import sweep_page
from litegpu.tools.sweep.runs import CPU, Combination, Row
from litegpu.tools.sweep.text import Sweep
from litegpu.zoo import schema
from litegpu.zoo.writer import ModelWriter
from made_up import hostile_model, made_up_profile
from places import SOURCE
from small_models import CPU_ONLY, WHY_ON_CPU, chain, fully_convolutional, step


class Reader(HTMLParser):
    """Gathers what a page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def scripts(self) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == "script"]


def read(path: Path) -> tuple[str, Reader]:
    """Return a page and what is in it; plotly's script is left out, which takes long to parse."""
    text = path.read_text(encoding="utf-8").replace(pages._plotly(), "")
    reader = Reader()
    reader.feed(text)
    return text, reader


def headings(text: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(r"<h2>(.*?)</h2>", text)]


def figures(text: str) -> list[dict[str, Any]]:
    found = re.findall(r'class="chart".*?<script type="application/json">(.*?)</script>', text)
    return [json.loads(each) for each in found]


@pytest.fixture
def split(tmp_path: Path) -> str:
    """A model that the GPU and the CPU share."""
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["SIN", "ABS", CPU_ONLY, "COS"]))
    return str(path)


# What the tools show


def test_check(split: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["check", split, f"--report={page}", "--max_delegated_partitions=2"]) == 0
    text, reader = read(page)
    assert "3 operations will run on the GPU, and the remaining 1" in text
    assert headings(text)[:3] == ["Graph", "Nodes", "Partitions"]
    assert headings(text)[-1] == "Machine"
    positions = [str(a["class"]) for t, a in reader.tags if t == "g" and "data-key" in a]
    assert positions == ["box input", "box output", *["box gpu0"] * 2, "box cpu", "box gpu1"]
    assert "GPU, partition 0 (2)" in text
    assert "CPU (1)" in text
    assert f"on the CPU: {WHY_ON_CPU}" in text, "the reason"
    assert not figures(text), "nothing was measured"
    assert len(text) == len(page.read_text(encoding="utf-8")), "what draws charts is not needed"


def test_profile(tmp_path: Path) -> None:
    model, page = tmp_path / "model.tflite", tmp_path / "page.html"
    model.write_bytes(fully_convolutional())
    assert cli.main(["profile", str(model), "--repeats=1", f"--report={page}"]) == 0
    text, reader = read(page)
    wanted = ["Slowest kernels", "Time by operation", "Time of an invoke", "Kernels"]
    assert headings(text)[:4] == wanted
    time, floor = figures(text)[0]["data"]
    assert (time["name"], floor["name"]) == ("time", "floor")
    assert sorted(time["x"], reverse=True) == time["x"]
    assert all(value > 0 for value in [*time["x"], *floor["x"]])
    nodes = details(text)
    kernels = dict(nodes["0"]["groups"])["kernel " + next_kernel(nodes["0"])]
    assert {"template", "time", "floor", "memory"} <= {name for name, _ in kernels}
    assert ["padding", "SAME"] in dict(nodes["0"]["groups"])["options"]
    assert ["weights", "constant 8×3×3×3 float32"] in dict(nodes["0"]["groups"])["inputs"]
    heats = [
        json.loads(str(a["data-heat"])) for t, a in reader.tags if t == "g" and "data-key" in a
    ]
    assert max(heat["time"] for heat in heats if heat) == 1, "the slowest node is the hottest"


def details(text: str) -> dict[str, Any]:
    """Return what the page shows of chosen nodes."""
    found = re.findall(r'</div>\n<script type="application/json">(.*?)</script>', text)
    nodes: dict[str, Any] = json.loads(found[-1])
    return nodes


def next_kernel(node: dict[str, Any]) -> str:
    names = [name for name, _ in node["groups"] if name.startswith("kernel ")]
    return str(names[0].removeprefix("kernel "))


def test_run(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    Image.fromarray(np.full((30, 40, 3), 200, np.uint8)).save(picture)
    command = ["run", "zoo:mobilenet_v1_0.25_128", f"--image={picture}", "--num_runs=3"]
    assert cli.main([*command, f"--report={page}"]) == 0
    text, reader = read(page)
    wanted = ["Picture", "Best classes", "Outputs", "Latency", "Latency, run by run"]
    assert headings(text)[:6] == [*wanted, "Agreement with the CPU"]
    classes, latency, runs = figures(text)
    assert classes["data"][0]["x"] == sorted(classes["data"][0]["x"], reverse=True)
    assert [(each["name"], len(each["x"])) for each in latency["data"]] == [
        ("delegate", 3),
        ("CPU", 3),
    ]
    assert runs["data"][0]["x"] == [1, 2, 3]
    (shown,) = [attrs["src"] for tag, attrs in reader.tags if tag == "img"]
    assert str(shown).startswith("data:image/jpeg;base64,")


def test_benchmark_model(split: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    quick = ("--num_runs=4", "--min_secs=0", "--warmup_min_secs=0", "--measure_energy=true")
    energy = ("--energy_min_secs=0.01", "--energy_idle_secs=0.01")
    command = ["benchmark", f"--graph={split}", "--use_gpu=true", *quick, *energy]
    assert cli.main([*command, f"--report={page}"]) == 0
    text, _ = read(page)
    assert headings(text)[:3] == ["Latency", "Latency, run by run", "Energy"]
    assert "Slowest kernels" in headings(text), "the GPU's part was profiled"
    histogram, _, *_ = figures(text)
    assert len(histogram["data"][0]["x"]) >= 4
    assert [each["text"].strip() for each in histogram["layout"]["annotations"]] == ["p50", "p95"]


def test_benchmark_model_without_a_gpu_and_without_runs(split: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["benchmark", f"--graph={split}", "--dry_run=true", f"--report={page}"]) == 0
    text, _ = read(page)
    assert headings(text) == ["Graph", "Nodes", "Machine"]
    assert "CPU (4)" in text


def test_inference_diff(split: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = ["inference_diff", split, "--delegate=gpu", "--num_runs=1", "--per_node"]
    assert cli.main([*command, f"--report={page}"]) == 0
    text, _ = read(page)
    wanted = ["Outputs", "Largest error by output", "Error by node", "Graph"]
    assert headings(text)[:4] == wanted
    assert "All outputs agree with the CPU" in text
    error, limit = figures(text)[1]["data"]
    assert error["x"] == [0, 1, 2, 3], "every node's result was read"
    assert limit["y"] == [0.001, 0.001]


def test_inference_diff_marks_the_node_that_goes_wrong(tmp_path: Path) -> None:
    models = [tmp_path / name for name in ("right.tflite", "wrong.tflite")]
    for path, factor in zip(models, (1.0, 1.5), strict=True):
        path.write_bytes(scaled(factor))
    page = tmp_path / "page.html"
    command = ["inference_diff", str(models[1]), f"--reference={models[0]}", "--num_runs=1"]
    assert cli.main([*command, "--per_node", f"--report={page}"]) == 1
    text, reader = read(page)
    assert "1 of 1 outputs differ from the CPU&#39;s by more than 0.001" in text
    assert headings(text)[2:5] == ["The wrong node", "Tensors there", "What to try"]
    marked = [a["data-key"] for t, a in reader.tags if t == "g" and "marked" in str(a.get("class"))]
    assert marked == ["1"]
    assert figures(text)[0]["data"][0]["marker"]["color"] == ["--hot"]


def scaled(factor: float) -> bytes:
    writer = ModelWriter()
    x = step(writer, "SIN", writer.input((1, 4, 4, 4)))
    factors = writer.constant(np.full((1, 1, 1, 4), factor, np.float32))
    writer.output(step(writer, "ABS", writer.op("MUL", [x, factors], [x.shape])))
    return writer.build()


def test_delegates(split: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["delegates", split, f"--report={page}"]) == 0
    text, _ = read(page)
    assert headings(text)[:3] == ["Delegates of this machine", "Supported types of models", "Graph"]
    assert "Recommended: " in text
    assert cli.main(["delegates", f"--report={page}"]) == 0
    text, _ = read(page)
    assert headings(text) == ["Delegates of this machine", "Supported types of models", "Machine"]


def test_devices(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["devices", f"--report={page}"]) == 0
    text, _ = read(page)
    assert headings(text)[0] == "Devices"
    assert "is the default." in text


def test_a_sweep() -> None:
    half = Row(Combination("cuda", "fp16", 8), batch=8, median_us=100, relative_l2=0.5)
    full = replace(half, way=Combination("cuda", "fp32", 8), relative_l2=1e-6)
    cpu = Row(Combination(CPU, "", 8), batch=8, median_us=900, relative_l2=float("nan"))
    failed = Row(Combination("opengl", "fp32", 8), reason="It ended with status 7.")
    found = Sweep("model", 2, {"webgpu": "No driver."}, [half, full, cpu, failed])
    goal = GOALS["throughput"]
    page = sweep_page(found, goal, None, 0.02)
    throughput, error, ranking, rest = page.sections
    assert isinstance(throughput, Chart)
    assert isinstance(error, Chart)
    (speeds,), (errors,) = throughput.figure["data"], error.figure["data"]
    assert [round(each) for each in speeds["x"]] == [80000, 80000, 8889]
    assert speeds["marker"]["color"] == ["--gpu0", "--gpu0", "--cpu"]
    assert errors["x"] == [0.5, 1e-6], "what is no number cannot be drawn"
    assert errors["marker"]["color"] == ["--hot", "--gpu0"]
    assert isinstance(ranking, Table)
    assert [row[:3] for row in ranking.rows] == [
        ["1", "cuda fp16", "8"],
        ["2", "cuda fp32", "8"],
        ["3", "CPU, XNNPACK", "8"],
    ]
    assert isinstance(rest, Text)
    assert list(rest.paragraphs) == [
        "opengl fp32, batch 8: It ended with status 7.",
        "webgpu: no usable device. No driver.",
    ]
    assert page.verdict.startswith("No configuration is recommended")
    assert "cuda fp16" in render(page)
    nothing = sweep_page(replace(found, rows=[failed]), goal, None, 0.02)
    assert [section.title for section in nothing.sections] == ["Not in the ranking"]


def test_batch(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    model, page, inputs = tmp_path / "model.tflite", tmp_path / "page.html", tmp_path / "inputs"
    model.write_bytes(chain(["SIN"]))
    inputs.mkdir()
    for number in range(3):
        np.save(inputs / f"{number}.npy", np.zeros((4, 4, 4), np.float32))
    (inputs / "bad<i>.npy").write_bytes(b"nothing")
    command = ["batch", str(model), f"--input={inputs}", f"--output={tmp_path / 'out.parquet'}"]
    assert cli.main([*command, f"--report={page}"]) == 0
    text, _ = read(page)
    assert headings(text)[:4] == [
        "Stages, each alone",
        "Steps of the run",
        "Where samples ran",
        "Samples that failed",
    ]
    assert "4 samples at " in text
    assert "bad&lt;i&gt;.npy" in text


# Parts


def test_sections_for_evaluations() -> None:
    pixel = Picture("n01440764_1.jpg", b"\x89PNG", "tench, taken for a <drake>")
    points = [(1.0, 0.5), (5.0, None)]
    sections: list[Section] = [
        curve("Accuracy", {"top-k <i>": points}, "k", "share"),
        gallery("Worst", [pixel], note="by score"),
        energy_section({"GPU": 0.25}),
        node_error_section({}, {}, 0.1),
        Text("Words", ["first", "second"], listed=True),
        Facts("Figures", [("top-1", "70 %")]),
    ]
    text = render(Page("imagenet", "model", "", sections))
    assert "data:image/png;base64,iVBORw" in text or "data:image/png;base64,iVBO" in text
    assert "tench, taken for a &lt;drake&gt;" in text
    first = figures(text.replace(pages._plotly(), ""))[0]
    assert first["data"][0]["name"] == "top-k &lt;i&gt;", "plotly takes some HTML in names"
    assert first["data"][0]["y"] == [0.5, None]


def test_infinite_errors_are_drawn_beyond_all_others() -> None:
    errors = {0: 0.0, 1: float("inf"), 2: 3.0}
    chart = node_error_section(errors, {1: "EXP"}, 0.1)
    assert chart.figure["data"][0]["y"] == [1e-9, 30, 3]
    assert "node 1, EXP: inf." in chart.note
    worse = Chart("", {"data": [{"y": [float("nan")]}], "layout": {"height": 1}})
    text = render(Page("check", "model", "", [chart, worse])).replace(pages._plotly(), "")
    assert "NaN" not in text.split("<script>")[0]
    assert [figure["data"][0]["y"] for figure in figures(text)] == [[1e-9, 30, 3], [None]]


def test_figures_are_what_plotly_takes() -> None:
    objects = importlib.import_module("plotly.graph_objects")
    charts = [
        bars("", ["a", "a"], [1, 2], "µs", floors=[0.5, None], hints=["x", "y"], log=True),
        bars("", [], [], "s", colours=[]),
        *(c for c in latency_sections({"GPU": [1.0, 2.0], "CPU": [3.0]}) if isinstance(c, Chart)),
        histogram("", {"a": [1.0]}, "ms", {"p50": 1.0}),
        lines("", {"a": [(0, 1), (1, None)]}, "x", "y", limit=1, log=True),
    ]
    for chart in charts:
        text = re.sub(r'"--\w+"', '"#123456"', json.dumps(chart.figure))
        objects.Figure(json.loads(text))  # raises for what plotly does not know
    colours = set(re.findall(r'"(--\w+)"', json.dumps([chart.figure for chart in charts])))
    style = (SOURCE / "litegpu/tools/reports/templates/page.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    assert colours
    assert all(f"{each}: #" in light and f"{each}: #" in dark for each in colours)


def test_a_profile_as_charts() -> None:
    profile = made_up_profile()
    kernels, by_op, whole, *_ = (c for c in profile_sections(profile) if isinstance(c, Chart))
    time, floor = kernels.figure["data"]
    assert (time["x"], floor["x"]) == ([100, 60], [25, 25])
    assert kernels.figure["layout"]["yaxis"]["ticktext"] == ["#4 CONV_2D 1×8×8×16", "COPY 1×8×8×16"]
    assert time["hovertext"][0] == (
        "#4 CONV_2D 1×8×8×16, conv_2d: 100.0 µs (62%), floor 25.0 µs (25%), 30.0 GFLOP/s, 20.0 GB/s"
    )
    assert by_op.figure["layout"]["yaxis"]["ticktext"] == ["CONV_2D ×1", "COPY ×1"]
    assert "device, with copies" not in whole.figure["layout"]["yaxis"]["ticktext"]
    slow = replace(profile.partitions[0].kernels[0], seconds=0.02)
    part = replace(profile.partitions[0], kernels=(slow,))
    chart, *_ = profile_sections(replace(profile, partitions=(part,)))
    assert isinstance(chart, Chart)
    assert chart.figure["layout"]["xaxis"]["title"]["text"] == "ms"
    assert [each["x"] for each in chart.figure["data"]] == [[20], [0.025]]


def test_nothing_is_drawn_of_sides_without_runs() -> None:
    assert list(latency_sections({"GPU": [], "CPU": []})) == []


# Safety


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    model, page = tmp_path / "<i>model.tflite", tmp_path / "page.html"
    model.write_bytes(hostile_model())
    assert cli.main(["profile", str(model), "--repeats=1", f"--report={page}"]) == 0
    _, reader = read(page)
    plain = [attrs for attrs in reader.scripts() if attrs.get("type") != "application/json"]
    assert plain == [{}, {}], "plotly's and the page's own"
    assert "img" not in {tag for tag, _ in reader.tags}
    assert not [a for _, attrs in reader.tags for a in attrs if a.startswith("on")]


def test_a_page_loads_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    model = tmp_path / "model.tflite"
    model.write_bytes(fully_convolutional())
    assert cli.main(["profile", str(model), "--repeats=1", f"--report={page}"]) == 0
    text, reader = read(page)
    links = [
        value
        for _, attrs in reader.tags
        for name, value in attrs.items()
        if name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href")
    ]
    assert links
    assert all(str(link).startswith(("#", "data:")) for link in links)
    assert not {tag for tag, _ in reader.tags} & {"link", "iframe", "object", "embed", "base"}
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [str(a["content"]) for t, a in reader.tags if t == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split(";")[1], "only the page's own scripts run"
    assert "http" not in policy


# Files


def test_a_page_that_cannot_be_written_is_told_before_the_work(
    split: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "missing" / "page.html"
    for tool in ("check", "profile", "run", "inference_diff", "delegates"):
        assert cli.main([tool, split, f"--report={page}"]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert f"--report={page}: the file cannot be written" in captured.err
    assert cli.main(["benchmark", f"--graph={split}", f"--report={page}"]) == 1
    assert f"--report={page}: the file cannot be written" in capsys.readouterr().err


def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    link = tmp_path / "link.html"
    link.symlink_to(path)

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(FileError, match=r"--report=.*cannot be written: No space left"):
            write_report(str(link), Page("check", "model", "", []))
    assert path.read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.html", "page.html"]
    path.chmod(0o640)
    write_report(str(link), Page("check", "model", "", []))
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert link.is_symlink()
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("plotly", r"A report needs the Python package 'plotly'.*'litegpu\[report\]'"),
        ("flatbuffers", r"needs the Python package 'flatbuffers'.*'litegpu\[zoo\]'"),
        (
            "fast_sugiyama",
            r"Drawing a graph needs the Python package 'fast-sugiyama'.*'litegpu\[report\]'",
        ),
    ],
)
def test_a_missing_package_is_told_before_the_work(
    module: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    for cached in (pages._plotly, schema.tables):
        cached.cache_clear()
    if module == "fast_sugiyama" and sys.version_info < (3, 11):
        prepare_report(str(tmp_path / "page.html"))  # graphs are laid out without it here
    else:
        with pytest.raises(MissingDependencyError, match=message):
            prepare_report(str(tmp_path / "page.html"))
    if module == "flatbuffers":
        with pytest.raises(MissingDependencyError, match=message):
            prepare_export(str(tmp_path / "data.json"))
    for cached in (pages._plotly, schema.tables):
        cached.cache_clear()
    prepare_report(None)


def test_help_and_plain_tables_load_no_charts(split: str) -> None:
    code = (
        "import sys\n"
        "from litegpu.tools import cli\n"
        "assert cli.main(['check', '--help']) == 0\n"
        f"assert cli.main(['check', {split!r}]) == 0\n"
        "assert not {'plotly', 'fast_sugiyama'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--report FILE" in done.stdout


def test_a_model_without_a_delegate_is_the_cpus() -> None:
    from litegpu.tools.reports.delegation import delegation_sections, device_facts

    first, *_ = delegation_sections(chain(["SIN"]), None)
    assert isinstance(first, Drawing)
    assert first.legend == [("cpu", "CPU (1)")]
    assert device_facts(None) == [("runs on", "the CPU alone")]
