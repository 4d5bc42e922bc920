"""The tables, targets and picture of docs/benchmarks.md follow from the result file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmark_modules import load_benchmark

WRITE = "Run: python benchmarks/report.py"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("report", monkeypatch)


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("targets", monkeypatch)


def result(models: dict[str, Any]) -> dict[str, Any]:
    """Return a result file of these models."""
    machine = {"cpu": "a CPU", "cpu_cores": 8, "packages": {"numpy": "2.0"}, "gpu": {}}
    return {
        "version": "1.0",
        "commit": "abc",
        "date": "today",
        "settings": {"repeats": "200"},
        "machine": machine,
        "models": models,
        "left_out": [],
    }


def model(batch: int = 1, **rows: dict[str, Any]) -> dict[str, Any]:
    """Return a model whose ways are given with underscores for spaces."""
    named = {way.replace("_", " "): row for way, row in rows.items()}
    return {"batch": batch, "float": True, "rows": named}


def verdict_on(targets: Any, models: dict[str, Any], name: str) -> Any:
    """Return the verdict on the one target of that name."""
    (found,) = [v for v in targets.verdicts(models) if v.target.name == name]
    return found


# What is in the repository


def test_the_page_is_up_to_date(report: Any) -> None:
    found = json.loads(report.RESULTS.read_text(encoding="utf-8"))
    written = report.PAGE.read_text(encoding="utf-8")
    assert written == report.page(written, found), WRITE


def test_the_picture_is_up_to_date(report: Any) -> None:
    found = json.loads(report.RESULTS.read_text(encoding="utf-8"))
    with Image.open(report.CHART) as picture:
        assert picture.info[report.DIGEST] == report.digest(report.chart_data(found)), WRITE


# Tables


def test_a_page_without_markers_is_refused(report: Any) -> None:
    with pytest.raises(ValueError, match=r"The page lacks the line <!-- From here on .* Put both"):
        report.page("# Title\n", result({}))


def test_only_what_is_between_the_markers_changes(report: Any) -> None:
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    written = report.page(text, result({"m": model(XNNPACK_1_thread={"whole_ms": 1.5})}))
    assert written.startswith(f"before\n{report.BEGIN}\n\nlitegpu 1.0, commit abc, today; no GPU;")
    assert written.endswith(f"\n\n{report.END}\nafter\n")
    assert "old" not in written
    assert report.page(written, result({})) != written


def test_a_table_has_the_columns_that_were_measured(report: Any) -> None:
    models = {
        "one": model(litegpu_cuda_fp16={"whole_ms": 0.25}, XNNPACK_8_threads={"whole_ms": 1.0}),
        "two": model(XNNPACK_8_threads={"whole_ms": 123.456}),
    }
    text = report.report(result(models))
    assert "| model | CUDA fp16 | XNNPACK, 8 threads |\n" in text
    assert "| one   | 0.250     | 1.00               |\n" in text
    assert "| two   | –         | 123                |\n" in text
    assert "| one   | 4.0x                     |\n" in text, "four times faster than XNNPACK"
    assert "### Device time" not in text
    assert "### Left out" not in text


def test_the_best_of_pytorch_is_its_fastest_row(report: Any) -> None:
    rows: dict[str, dict[str, Any]] = {
        "torch_fp16_eager": {"whole_ms": 3.0},
        "torch_fp16_compile": {"whole_ms": 2.0},
        "torch_fp32_graph": {"whole_ms": 1.0},
        "torch_fp16_graph": {"error": "broken"},
    }
    text = report.report(result({"m": model(1, **rows)}))
    assert "| model | PyTorch fp16, best | PyTorch fp32, best |" in text
    assert "| m     | 2.00               | 1.00               |" in text
    assert "- torch fp16 graph (m): broken" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0.000"), (0.01234, "0.012"), (0.00123, "1.2e-03"), (1.234, "1.23"),
     (12.34, "12.3"), (1234.5, "1234"), (-150.0, "-150")],
)  # fmt: skip
def test_numbers_have_about_three_digits(report: Any, value: float | None, text: str) -> None:
    assert report.number(value) == text


def test_what_is_left_out_says_why(report: Any) -> None:
    no = {"error": "no"}
    found = result({"a": model(w=no, v=no), "b": model(w=no, v=no)})
    found["left_out"] = ["c"]
    found["models"]["d"] = {"error": "unreadable", "rows": {}}
    text = report.report(found)
    assert "- w; v (a, b): no\n" in text
    assert "- every way (d): unreadable\n" in text
    assert text.endswith("- not started within the time limit: c")


def test_the_clocks_are_a_range(report: Any) -> None:
    def clocks(sm: str) -> dict[str, Any]:
        return {"clocks": {"clocks.sm": sm, "clocks.mem": "3201 MHz"}}

    models = {"m": model(a=clocks("1980 MHz"), b=clocks("345 MHz"), c={"clocks": {}})}
    assert "SM 345 MHz to 1980 MHz, memory 3201 MHz. " in report.about(result(models))


# Targets


MOBILENET = "zoo:mobilenet_v1_1.0_224"


@pytest.mark.parametrize(("seconds", "met"), [(0.060, True), (0.061, False)])
def test_a_limit_is_met_or_missed(targets: Any, seconds: float, met: bool) -> None:
    models = {MOBILENET: model(litegpu_cuda_fp16={"device_ms": seconds})}
    found = verdict_on(targets, models, "MobileNet v1 fp16, batch 1, device time")
    assert (found.value, found.model, found.met) == (seconds, MOBILENET, met)


@pytest.mark.parametrize(("ours", "met"), [(0.09, True), (0.1, False)])
def test_the_part_of_pytorch_is_of_its_best_compiled_row(
    targets: Any, ours: float, met: bool
) -> None:
    rows = {
        "litegpu cuda fp16": {"device_ms": ours},
        "torch fp16 compile": {"device_ms": 0.3},
        "torch fp16 compile, symmetric padding": {"device_ms": 0.2},
        "torch fp16 graph": {"device_ms": 0.01},
    }
    models = {MOBILENET: {"batch": 1, "float": True, "rows": rows}}
    name = "MobileNet v1 fp16, batch 1, part of torch.compile + CUDA graph"
    found = verdict_on(targets, models, name)
    assert found.value == pytest.approx(ours / 0.2)
    assert found.met is met


def test_every_model_must_do_it_and_the_worst_is_named(targets: Any) -> None:
    def fast(times: float) -> dict[str, Any]:
        return model(
            litegpu_cuda_fp16={"whole_ms": 1.0}, LiteRT_accelerator_fp16={"whole_ms": times}
        )

    name = "every float model fp16, faster than the accelerator"
    found = verdict_on(targets, {"a": fast(7.0), "b": fast(6.0)}, name)
    assert (found.value, found.model, found.met) == (6.0, "b", True)
    found = verdict_on(targets, {"a": fast(7.0), "b": fast(5.9)}, name)
    assert (found.model, found.met) == ("b", False)
    batched = {**fast(1.0), "batch": 64}
    quantised = {**fast(1.0), "float": False}
    found = verdict_on(targets, {"a": fast(7.0), "b": batched, "c": quantised}, name)
    assert (found.model, found.met) == ("a", True)


def test_a_target_is_not_met_while_a_model_lacks_a_figure(targets: Any, report: Any) -> None:
    models = {
        "a": model(litegpu_cuda_fp32={"norm_error": 1e-6}),
        "b": model(litegpu_cuda_fp32={"error": "broken"}),
    }
    found = verdict_on(targets, models, "accuracy fp32")
    assert (found.value, found.met, found.missing) == (1e-6, None, ("b",))
    assert "met where measured (not: b)" in report.targets_table(models)
    models["a"]["rows"]["litegpu cuda fp32"]["norm_error"] = 1.0
    assert verdict_on(targets, models, "accuracy fp32").met is False


def test_what_is_not_a_number_is_the_worst(targets: Any) -> None:
    models = {
        title: model(litegpu_cuda_fp16={"norm_error": value})
        for title, value in (("a", 1e-6), ("b", math.nan), ("c", 1.0))
    }
    found = verdict_on(targets, models, "accuracy fp16")
    assert (found.model, found.met) == ("b", False)


def test_models_that_rank_say_nothing_about_accuracy(targets: Any) -> None:
    models = {
        "a": model(litegpu_cuda_fp16={"norm_error": 1e-3}),
        "b": {**model(litegpu_cuda_fp16={"norm_error": 0.5}), "ranks": True},
    }
    found = verdict_on(targets, models, "accuracy fp16")
    assert (found.model, found.met) == ("a", True)


def test_nothing_measured_is_no_verdict(targets: Any, report: Any) -> None:
    assert all(v.met is None and v.value is None for v in targets.verdicts({}))
    lines = report.targets_table({}).splitlines()[2:]
    assert len(lines) == len(targets.TARGETS)
    assert all(line.rstrip(" |").endswith("not measured") for line in lines)


# The picture


def test_it_draws_and_writes(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    models = {
        "zoo:one": model(litegpu_cuda_fp16={"whole_ms": 0.25}, torch_fp16_graph={"whole_ms": 1}),
        "two": model(litegpu_cuda_fp16={"whole_ms": 25.0}),
    }
    results, page, chart = (tmp_path / name for name in ("r.json", "p.md", "c.png"))
    results.write_text(json.dumps(result(models)), encoding="utf-8")
    page.write_text(f"{report.BEGIN}\n{report.END}\n", encoding="utf-8")
    arguments = {"--results": results, "--page": page, "--chart": chart}
    report.main([str(part) for pair in arguments.items() for part in pair])
    assert "| zoo:one |" in page.read_text(encoding="utf-8")
    data = {"litegpu CUDA fp16": {"one": 0.25, "two": 25.0}, "PyTorch fp16, best": {"one": 1.0}}
    assert report.chart_data(result(models)) == data
    with Image.open(chart) as picture:
        assert picture.info[report.DIGEST] == report.digest(data)
        pixels = np.asarray(picture.convert("RGBA"), int)
    assert pixels[0, 0, 3] == 0, "there is no background, so that it fits a light and a dark page"
    ink = pixels[pixels[..., 3] == 255][:, :3].mean(-1)
    assert ((ink > 60) & (ink < 200)).mean() > 0.99, "what is drawn can be read on both"
