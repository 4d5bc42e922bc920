"""`litegpu inference_diff`: its inputs, figures, output lines and files, and errors."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu import backends
from litegpu.errors import ModelError
from litegpu.files.wire import message, repeated
from litegpu.tools import cli
from litegpu.tools.inference_diff import beyond_lines
from litegpu.tools.inference_diff.differences import GaussianInputs, compare_runs
from litegpu.tools.inference_diff.tolerance import cosine, parse_tolerance, rows_with_others
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, chain, fully_convolutional
from wire_reader import parsed

Array = npt.NDArray[Any]


def detail(kind: str, shape: Sequence[int] = (50, 40)) -> dict[str, Any]:
    return {
        **{"name": kind, "index": 0, "shape": np.array(shape), "dtype": np.dtype(kind).type},
        "quantization": (0.5, 128) if kind == "uint8" else (0.0, 0),
    }


def drawn(kind: str) -> Array:
    return GaussianInputs([detail(kind)]).draw()[0]


# Inputs


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_floats_are_normal_between_minus_one_and_one(kind: str) -> None:
    values = drawn(kind)
    assert values.dtype == kind and values.shape == (50, 40)
    assert values.min() >= -1 and values.max() <= 1
    # a normal distribution with a deviation of 2/3, cut at 1.5 deviations
    assert float(values.astype(np.float64).std()) == pytest.approx(0.494, abs=0.03)
    assert abs(float(values.astype(np.float64).mean())) < 0.04


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64"])
def test_integers_have_the_range_of_their_type(kind: str) -> None:
    values, limits = drawn(kind).astype(np.float64), np.iinfo(kind)
    unit = (values - limits.min) / (float(limits.max) - limits.min)
    assert drawn(kind).dtype == kind
    assert 0 <= unit.min() < 0.02 and 0.98 < unit.max() <= 1
    assert float(unit.std()) == pytest.approx(0.247, abs=0.015)


def test_bools_are_both() -> None:
    assert 0.4 < drawn("bool").mean() < 0.6


def test_inputs_are_drawn_alike_every_time_and_differ_from_run_to_run() -> None:
    inputs = GaussianInputs([detail("float32")])
    first, second = inputs.draw()[0], inputs.draw()[0]
    assert np.array_equal(first, drawn("float32"))
    assert not np.array_equal(first, second)


def test_an_input_that_is_not_drawn() -> None:
    text = "InferenceProfilerStage only supports .*/int64/bool inputs, and 'complex64' is complex64"
    with pytest.raises(ModelError, match=text):
        GaussianInputs([detail("complex64")])


# Figures


class Side:
    """An interpreter whose output is what it is told, one value a run."""

    def __init__(self, results: Sequence[Array]) -> None:
        self.results, self.invokes = results, 0

    def get_output_details(self) -> list[dict[str, Any]]:
        return [detail(self.results[0].dtype.name)]

    def get_input_details(self) -> list[dict[str, Any]]:
        return [detail("float32", (1,))]

    def set_tensor(self, index: int, value: Array) -> None:
        pass

    def invoke(self) -> None:
        self.invokes += 1

    def get_tensor(self, index: int) -> Array:
        return self.results[(self.invokes - 1) // 3]


def compared(test: Sequence[Array], reference: Sequence[Array], limit: str = "0.1") -> Any:
    sides = Side(test), Side(reference)
    inputs = GaussianInputs(sides[0].get_input_details())
    found = compare_runs(*sides, inputs, len(test), parse_tolerance(limit), iter)
    assert [side.invokes for side in sides] == [3 * len(test)] * 2
    return found


def test_figures_are_of_the_runs_mean_errors() -> None:
    reference = [np.array([[10.0, 0], [0, 0]], np.float32)] * 2
    test = [np.array([[10.0, 1], [0, 0]], np.float32), np.array([[10.0, 1], [-4, 0]], np.float32)]
    (output,) = compared(test, reference).outputs
    assert (output.avg_error, output.std_deviation) == (0.75, 0.5)
    assert (output.min_error, output.largest_mean_error) == (0.25, 1.25)
    assert (output.max_error, output.max_error_run, output.max_error_index) == (4.0, 1, (1, 0))
    bad = output.first_bad
    assert (bad.run, bad.index, bad.test, bad.reference) == (1, (1, 0), -4.0, 0.0)


def test_latencies_are_of_all_invokes() -> None:
    found = compared([np.zeros((2,), np.float32)] * 2, [np.zeros((2,), np.float32)] * 2).test
    assert found.min_us <= found.avg_us <= found.max_us
    assert found.sum_us == pytest.approx(6 * found.avg_us)


def test_quantized_outputs_are_compared_as_integers() -> None:
    (output,) = compared([np.array([250], np.uint8)], [np.array([4], np.uint8)]).outputs
    assert output.avg_error == output.max_error == 246


def test_what_is_not_finite_is_far_away_unless_both_are() -> None:
    inf, nan = np.inf, np.nan
    reference = [np.array([inf, nan, 1, 1, -inf], np.float32)]
    test = [np.array([inf, nan, 1, nan, inf], np.float32)]
    (output,) = compared(test, reference).outputs
    assert output.max_error == output.avg_error == inf
    assert output.first_bad.index == (3,)
    assert compared(reference, reference).outputs[0].max_error == 0


def test_an_output_that_is_not_compared() -> None:
    with pytest.raises(ModelError, match=r"only supports .* outputs, and 'float64' is float64"):
        compared([np.zeros(1)], [np.zeros(1)])


# The tool


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.tflite"
    path.write_bytes(fully_convolutional())
    return str(path)


def masked(text: str) -> list[str]:
    """Return lines with # for numbers."""
    return re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", text).splitlines()


def test_lines(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["inference_diff", f"--model_file={model}", "--delegate=gpu", "--num_runs=2"]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    device = masked(re.findall("GPU delegate: (.*)", out)[0])[0]
    assert device.endswith("fp# (the default; --precision=fp# stores half)")
    assert masked(out) == [
        "INFO: GPU delegate created.",
        f"INFO: GPU delegate: {device}",
        "INFO: # operations will run on the GPU, and the remaining # operations will run on the "
        "CPU.",
        "INFO: Num evaluation runs: #",
        "INFO: Reference run latency: avg=#(us), std_dev=#(us)",
        "INFO: Test run latency: avg=#(us), std_dev=#(us)",
        "INFO: OutputDiff[#]: avg_error=#, std_dev=#",
        "INFO: OutputMax[#]: max_error=# at [#, #, #, #], no index beyond the tolerance of #",
    ]
    assert "Num evaluation runs: 2\n" in out
    assert "tolerance of 0.001\n" in out
    assert cli.main([*command, "--precision=fp16"]) == 0
    assert "tolerance of 0.02\n" in capsys.readouterr().out


def test_values_that_differ_in_the_last_bit_differ_in_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = np.full(1, 1.2345678, np.float32)
    found = compared([value], [np.nextafter(value, np.float32(2))], "1e-9")
    (line,) = beyond_lines(found, parse_tolerance("1e-9"))
    test, reference = re.findall(r"is (\S+) instead of (\S+) in run", line)[0]
    assert test != reference


# The tolerance


def beyond(test: Sequence[Array], reference: Sequence[Array], limit: str) -> list[str]:
    return beyond_lines(compared(test, reference, limit), parse_tolerance(limit))


def test_every_criterion_has_a_limit_and_all_count() -> None:
    reference = [np.array([[4, 3, 2, 1], [1, 2, 3, 4]], np.float32)] * 2
    other = reference[0].copy()
    other[1] = [1, 2, 4, 3]
    test = [reference[0], other]
    for limit in ("relative:0.25", "absolute:1", "cosine:0.98", "top_k:2", "absolute:1,top_k:3"):
        assert beyond(test, reference, limit) == [], limit
    name = "Output 0, 'float32', "
    element = "element [1, 2] is 4 instead of 3 in run 1."
    assert beyond(test, reference, "0.24") == [
        f"{name}is beyond the tolerance of 0.24 of its largest magnitude: {element}"
    ]
    assert beyond(test, reference, "absolute:0.9,cosine:0.99,top_k:1,relative:0.5") == [
        f"{name}is beyond the tolerance of 0.5 of its largest magnitude and of 0.9: {element}",
        f"{name}has a cosine similarity of 0.983333333 to the reference, below 0.99, in run 1.",
        f"{name}has other elements among the 1 largest than the reference in 1 rows, in run 1.",
    ]
    (output,) = compared(test, reference, "cosine:0.99").outputs
    (measured,) = output.criteria
    assert (measured.criterion, measured.limit, measured.worst_run) == ("cosine", 0.99, 1)
    assert (output.passed, output.first_run_beyond, output.first_bad) == (False, 1, None)
    assert measured.worst == pytest.approx(59 / 60)


def test_quantized_outputs_have_the_cosine_of_their_numbers() -> None:
    test, reference = ([np.array([each, 128], np.uint8)] for each in (126, 130))
    assert compared(test, reference, "cosine:0").outputs[0].criteria[0].worst == -1


NAN, INF = np.nan, np.inf


def floats(test: Any, reference: Any) -> tuple[Array, Array]:
    return np.array(test, np.float32), np.array(reference, np.float32)


@pytest.mark.parametrize(
    ("test", "reference", "similarity"),
    [
        *[([0, 0], [0, 0], 1), ([0, 1], [0, 0], 0), ([NAN, 1], [NAN, 1], 1), ([], [], 1)],
        *[([NAN, 1], [0, 1], 0), ([INF], [INF], 1), ([INF], [1], 0), ([3e38], [1e-40], 1)],
    ],
)
def test_cosine(test: list[float], reference: list[float], similarity: float) -> None:
    assert cosine(*floats(test, reference)) == pytest.approx(similarity)


@pytest.mark.parametrize(
    ("test", "reference", "k", "rows"),
    [
        *[([1, 2, 3], [3, 2, 1], 1, 1), ([1, 2, 3], [3, 2, 1], 3, 0), ([1, 2], [2, 1], 9, 0)],
        *[([1, 3, 2], [1, 2, 3], 2, 0), ([2, 2, 1], [1, 2, 0], 1, 0), ([2, 1, 2], [1, 2, 0], 1, 1)],
        *[([5, 5, 5], [1, 2, 3], 2, 0), ([NAN, 1], [2, 1], 1, 1), ([NAN, 1], [NAN, 1], 1, 0)],
        *[([], [], 1, 0), (7, 3, 1, 0), ([[1, 2], [1, 2]], [[2, 1], [2, 1]], 1, 2)],
        ([INF, 1], [5, 1], 1, 0),
    ],
)
def test_the_largest_elements(test: Any, reference: Any, k: int, rows: int) -> None:
    assert rows_with_others(*floats(test, reference), k) == rows


def test_another_model_as_the_reference(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.tflite"
    content = bytearray(fully_convolutional())
    position = content.index(
        np.random.default_rng(3).normal(0, 0.2, 270).astype(np.float32).tobytes()
    )
    content[position : position + 4] = struct.pack("<f", 9.0)
    other.write_bytes(content)
    command = ["inference_diff", model, "--num_runs=1", f"--reference={other}"]
    assert cli.main(command) == 1, "it is beyond the tolerance"
    captured = capsys.readouterr()
    found = re.search(r"max_error=(\S+) at .*, first_bad_index=(\[.*\]) in run 0", captured.out)
    assert found and float(found[1]) > 0.01
    assert captured.err.startswith("ERROR: Output 0, '")
    said = f"is beyond the tolerance of 0.001 of its largest magnitude: element {found[2]} is "
    assert said in captured.err and " instead of " in captured.err
    assert cli.main([*command, "--tolerance=1000"]) == 0
    capsys.readouterr()
    assert cli.main([*command, "--tolerance=cosine:1,absolute:1000", "--json"]) == 1
    captured = capsys.readouterr()
    shown = json.loads(captured.out)
    setting = {each: shown[each] for each in ("device", "backend", "precision", "passed")}
    assert setting == {"device": None, "backend": None, "precision": "fp32", "passed": False}
    assert shown["tolerance"] == {"absolute": 1000, "cosine": 1}
    assert [each["passed"] for each in shown["outputs"][0]["criteria"]] == [True, False]
    assert re.search(r"OutputTolerance\[0\]: cosine=0\.\S+ in run 0, limit 1\n", captured.err)
    assert "has a cosine similarity of 0." in captured.err
    assert cli.main([*command[:-1], f"--reference={model}", "--use_xnnpack=false"]) == 0
    assert "OutputDiff[0]: avg_error=0, std_dev=0\n" in capsys.readouterr().out


def test_a_reference_of_another_shape(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.tflite"
    other.write_bytes(fully_convolutional((1, 5, 5, 3)))
    assert cli.main(["inference_diff", model, f"--reference={other}"]) == 1
    error = capsys.readouterr().err
    assert "are float32[1, 9, 7, 3], those of" in error and "are float32[1, 5, 5, 3]" in error
    assert "Give --reference a model with the same inputs and outputs." in error


def test_nothing_on_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.tflite"
    path.write_bytes(chain([CPU_ONLY]))
    assert cli.main(["inference_diff", str(path), "--delegate=gpu", "--num_runs=1"]) == 0
    out = capsys.readouterr().out
    assert "WARN: Though GPU delegate is explicitly applied, the model graph will not be" in out


def test_threads_come_from_the_tools_own_flag(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inference_diff", model, "--num_threads=2", "--num_runs=1"]) == 0
    warning = "WARN: --num_threads is not used here: use --num_interpreter_threads.\n"
    assert capsys.readouterr().out.startswith(warning)


def test_json_is_alone_on_stdout(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["inference_diff", model, "--delegate=gpu", "--num_runs=2", "--json"]
    assert cli.main(command) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["model"], found["num_runs"], len(found["outputs"])) == (model, 2, 1)
    assert 0 <= found["outputs"][0]["avg_error"] <= found["outputs"][0]["max_error"] < 0.01
    assert "INFO: OutputDiff[0]: avg_error=" in captured.err
    assert captured.err.count(found["device"]) and found["backend"] in backends.BACKENDS
    assert (found["precision"], found["tolerance"]) == ("fp32", {"relative": 0.001})
    assert found["passed"] and found["outputs"][0]["criteria"][0]["passed"]


def test_the_wire_format() -> None:
    # the examples of the format's own description: 150 and "testing"
    assert message((1, 150)) == bytes.fromhex("089601")
    assert message((2, "testing")) == bytes.fromhex("120774657374696e67")
    assert message(*repeated(4, [3, 270])) == bytes.fromhex("2003208e02")
    assert message((1, -1)) == b"\x08" + b"\xff" * 9 + b"\x01"
    assert message((1, np.float32(1.0)), (2, 1.0)) == bytes.fromhex("0d0000803f11000000000000f03f")


def test_the_metrics_file(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, data = tmp_path / "metrics.pb", tmp_path / "diff.json"
    command = ["inference_diff", model, "--delegate=gpu", "--num_runs=2", f"--json={data}"]
    assert cli.main([*command, f"--output_file_path={target}"]) == 0
    found = json.loads(data.read_text(encoding="utf-8"))
    stage = dict(parsed(target.read_bytes()))
    assert stage[1] == 2
    profiler = dict(parsed(dict(parsed(stage[2]))[5]))
    for number, side in ((1, "reference"), (2, "test")):
        times = dict(parsed(profiler[number]))
        assert list(times.values()) == list(found[side].values())
    errors = dict(parsed(profiler[3]))
    output = found["outputs"][0]
    names = ("largest_mean_error", "min_error", "avg_error", "std_deviation")
    assert errors == {
        index: pytest.approx(output[name], rel=1e-6) for index, name in enumerate(names, start=1)
    }


@pytest.mark.parametrize(
    ("argument", "status", "message"),
    [
        ("--delegate=cpu", 2, "'cpu' is not one of nnapi, gpu, hexagon, xnnpack, coreml"),
        ("--num_runs=0", 2, "'0' is not a whole number of at least 1"),
        ("--tolerance=-1", 2, "'-1' is not a finite number above 0"),
        (
            "--tolerance=cosin:0.9",
            2,
            "'cosin' is not one of relative, absolute, cosine, top_k.",
        ),
        ("--tolerance=cosine:9", 2, "'9' is not a number from 0 to 1"),
        ("--tolerance=0.1,relative:0.2", 2, "'relative' is given twice"),
        ("--tolerance=top_k:0", 2, "'0' is not a whole number of at least 1"),
        ("--reference=nothing", 1, "No model 'nothing'"),
        ("--output_file_path=/no/such/folder/m.pb", 1, "m.pb: the file cannot be written: "),
    ],
)
def test_impossible_wishes_are_named(
    argument: str, status: int, message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inference_diff", model, argument]) == status
    error = capsys.readouterr().err
    assert message in error
    assert "ERROR: Could not run the task evaluation!\n" in error


def test_an_output_of_another_type_fails_the_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = ModelWriter()
    x = writer.input((1, 4), "float32")
    writer.output(writer.op("CAST", [x], [(1, 4)], dtype="int64"))
    path = tmp_path / "cast.tflite"
    path.write_bytes(writer.build())
    assert cli.main(["inference_diff", str(path), "--num_runs=1"]) == 1
    error = capsys.readouterr().err
    assert "ERROR: Could not run the task evaluation!\n" in error
    assert "InferenceProfilerStage only supports float32/int8/uint8/int32/bool outputs" in error


def test_inputs_that_the_model_cannot_run_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = ModelWriter()
    indices = writer.input((4,), "int32")
    table = writer.constant(np.ones((3, 2), np.float32))
    writer.output(writer.op("GATHER", [table, indices], [(4, 2)], options={"axis": 0}))
    path = tmp_path / "gather.tflite"
    path.write_bytes(writer.build())
    assert cli.main(["inference_diff", str(path), "--num_runs=1"]) == 1
    error = capsys.readouterr().err
    assert "The model cannot run on these inputs: " in error
    assert "out of bounds" in error


def test_a_missing_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inference_diff", "--model_file=missing"]) == 1
    assert "No model 'missing'" in capsys.readouterr().err
    assert cli.main(["inference_diff"]) == 2
    assert "the following arguments are required: MODEL" in capsys.readouterr().err
