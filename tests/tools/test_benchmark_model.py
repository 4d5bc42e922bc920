"""`litegpu benchmark_model`: the output lines of TensorFlow Lite's tool, and errors."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.errors import ExecutionError, ModelError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools import (
    benchmark_model,
    cli,
)
from litegpu.tools.benchmark_model import session as benchmark_session
from litegpu.tools.benchmark_model.examples import example
from litegpu.tools.benchmark_model.memory import resident_kb
from litegpu.tools.registrar import make_delegates
from small_models import CPU_ONLY, chain, encode_and_decode, with_subgraphs
from wire_reader import parsed

QUICK = ("--num_runs=3", "--min_secs=0", "--warmup_min_secs=0")
GPU = ("--use_gpu=true", "--gpu_precision_loss_allowed=false")
STATISTICS = "count=N first=N curr=N min=N max=N avg=N std=N p5=N median=N p95=N"
ONE = "count=N curr=N p5=N median=N p95=N"
HAS_PEAK = sys.platform != "win32"


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A file with nodes that all run on the GPU."""
    return saved(tmp_path, chain(["ABS", "LOGISTIC"]))


@pytest.fixture
def shared(tmp_path: Path) -> str:
    """A file with a node in the middle that stays on the CPU."""
    return saved(tmp_path, chain(["ABS", CPU_ONLY, "LOGISTIC"]))


def saved(folder: Path, content: bytes) -> str:
    path = folder / "model.tflite"
    path.write_bytes(content)
    return str(path)


def benchmark(model: str, *flags: str) -> int:
    return cli.main(["benchmark", f"--graph={model}", *QUICK, *flags])


def masked(text: str, path: str = "") -> list[str]:
    """Return the lines with N for numbers, and MODEL for a path."""
    if path:
        text = text.replace(path, "MODEL")
    return re.sub(r"(?<![\w.])-?\d+(\.\d+)?(e[-+]?\d+)?(?=\D)", "N", text).splitlines()


def test_the_lines_are_the_originals(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(model, *GPU, "--num_threads=2", "--report_peak_memory_footprint") == 0
    delta = [
        "Note: as the benchmark tool itself affects memory footprint, the following is only "
        "APPROXIMATE to the actual memory footprint of the model at runtime. Take the "
        "information at your discretion.",
        "Memory footprint delta from the start of the tool (MB): init=N overall=N",
    ]
    status = [
        "Memory status at the end of exeution:",
        "- VmRSS              : N MB",
        "+ RssAnnon           : N MB",
        "+ RssFile + RssShmem : N MB",
    ]
    expected = [
        "STARTING!",
        "Log parameter values verbosely: [N]",
        "Min num runs: [N]",
        "Min runs duration (seconds): [N]",
        "Num threads: [N]",
        "Min warmup runs duration (seconds): [N]",
        "Report the peak memory footprint: [N]",
        "Graph: [MODEL]",
        "Signature to run: []",
        "#threads used for CPU inference: [N]",
        "Use gpu: [N]",
        "Allow lower precision in gpu: [N]",
        "Loaded model MODEL",
        "GPU delegate created.",
        "GPU delegate: DEVICE, fp32",
        "Explicitly applied GPU delegate, and the model graph will be completely executed by the "
        "delegate.",
        "The input model file size (MB): N",
        "Initialized session in Nms.",
        "Running benchmark for at least N iterations and at least N seconds but terminate if "
        "exceeding N seconds.",
        ONE,
        "Running benchmark for at least N iterations and at least N seconds but terminate if "
        "exceeding N seconds.",
        STATISTICS,
        "Inference timings in us: Init: N, First inference: N, Warmup (avg): N, Inference (avg): N",
        *(delta if HAS_PEAK else []),
        "Overall peak memory footprint (MB) via periodic monitoring: N",
        *(status if resident_kb() else []),
        "Computed by: GPU, CPU (XNNPACK, threads: N)",
        "Latency percentiles in us: p50=N p90=N p95=N p99=N",
        "Throughput (inferences/s): N",
        "GPU memory of the delegate (MB): tensors=N weights=N",
    ]
    output = re.sub(r"(?<=GPU delegate: ).*(?=, fp)", "DEVICE", capsys.readouterr().out)
    lines = masked(output, model)
    assert [line.removeprefix("INFO: ") for line in lines if line] == expected
    assert [lines[index + 1] for index, line in enumerate(lines) if "count=" in line] == ["", ""]


def test_the_model_may_stand_by_itself(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", model, *QUICK, "--num_runs=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "WARN: Unconsumed cmdline flags: --num_runs=9",
        "WARN: Some lines are repeated. The first line of each class counts.",
        "INFO: STARTING!",
    ]
    assert f"INFO: Graph: [{model}]" in lines and f"INFO: Loaded model {model}" in lines
    assert benchmark(model, "other.tflite") == 2
    assert f"Two models are given: other.tflite and --graph={model}." in capsys.readouterr().err
    assert benchmark(model, "--zzz=1") == 2
    assert "error: unknown flag '--zzz'." in capsys.readouterr().err


def test_an_option_of_the_delegate_asks_for_the_gpu(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(model, "--precision=fp16", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["nodes"]["gpu"] > 0
    assert captured.err.startswith("INFO: --precision requests the GPU delegate.\n")
    assert re.search(r"INFO: GPU delegate: .*, fp16\n", captured.err)


def test_the_cpu_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(model) == 0
    text = capsys.readouterr().out
    assert "delegate" not in text
    assert "Computed by: CPU (XNNPACK, threads: the runtime's choice)" in text


def test_verbose_prints_every_flag(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(model, "--verbose=true") == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "Log parameter values verbosely: [1]",
        "Max runs duration (seconds): [150]",
        "Inter-run delay (seconds): [-1]",
        "Num threads: [-1]",
        "Memory footprint check interval (ms): [50]",
        "Op profiling output mode.: [stdout]",
        "Max initial profiling buffer entries: [1024]",
        "GPU backend: []",
    ):
        assert f"INFO: {line}" in lines


def test_what_the_delegate_leaves_to_the_cpu(
    shared: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(shared, *GPU, "--min_nodes_per_partition=1") == 0
    first = capsys.readouterr()
    assert "will be partially executed by the delegate w/ 2 delegate kernels." in first.out
    assert benchmark(shared, *GPU, "--min_nodes_per_partition=9") == 0
    text = capsys.readouterr().out
    assert (
        "INFO: Though GPU delegate is explicitly applied, the model graph will not be executed "
        "by the delegate."
    ) in text


@pytest.mark.parametrize("flags", [(), (*GPU, "--min_nodes_per_partition=1")])
def test_full_delegation_may_be_required(
    flags: tuple[str, ...], shared: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(shared, *flags, "--require_full_delegation") == 1
    captured = capsys.readouterr()
    assert captured.err.endswith(
        "ERROR: Disallowed CPU fallback detected.\nERROR: Benchmarking failed.\n"
    )
    assert "Initialized session" not in captured.out


def test_xnnpack_may_be_required(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(model, "--use_xnnpack=true", "--require_full_delegation") == 0
    text = capsys.readouterr().out
    assert "Explicitly applied XNNPACK delegate, and the model graph will be completely" in text


@pytest.mark.parametrize(
    ("argv", "message", "status"),
    [
        (["--graph=missing.tflite"], "Failed to load model missing.tflite", 1),
        (
            ["--graph=m", "--op_profiling_output_mode=xml"],
            "Output modexml is not supported. Supported values are: 'stdout', 'csv' and 'proto'.",
            2,
        ),
        (["--graph=m", "--result_file_path=no/where.pb"], "the file cannot be written", 1),
    ],
)
def test_what_is_refused(
    argv: list[str], message: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["benchmark_model", *argv]) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith("ERROR: Benchmarking failed.\n")


def test_without_a_model_there_is_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark"]) == 2
    assert capsys.readouterr().err == (
        "ERROR: Please specify the name of your TF Lite input file with --graph\n"
        "ERROR: Benchmarking failed.\n"
        "For example: litegpu benchmark_model --graph=model.tflite --use_gpu=true\n"
    )


def test_a_model_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(saved(tmp_path, b"nothing"), *GPU) == 1
    assert "ERROR: The runtime rejects this model" in capsys.readouterr().err


def test_a_delegate_that_fails(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interpreter(*args: object, **keywords: object) -> None:
        raise ExecutionError("the device is gone")

    monkeypatch.setattr("litegpu.runtime_abi.interpreter.interpreter", interpreter)
    assert benchmark(model, *GPU) == 1
    assert capsys.readouterr().err.endswith(
        "ERROR: Failed to apply GPU delegate.\nERROR: the device is gone\n"
        "ERROR: Benchmarking failed.\n"
    )


def test_a_run_that_fails(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> None:
        def timed_runs(*args: object) -> None:
            raise error

        monkeypatch.setattr(benchmark_model, "timed_runs", timed_runs)

    fail(RuntimeError("node 3:\n it broke"))
    assert benchmark(model) == 1
    assert "ERROR: Failed to invoke! node 3: it broke\n" in capsys.readouterr().err
    fail(ExecutionError("the device is gone"))
    assert benchmark(model) == 1
    assert "ERROR: the device is gone\n" in capsys.readouterr().err
    monkeypatch.setenv("LITEGPU_DEBUG", "1")
    with pytest.raises(ExecutionError, match="the device is gone"):
        benchmark(model)


def test_shapes_that_the_model_cannot_have(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = "--input_layer=other"
    assert benchmark(model, name, "--input_layer_shape=1,4") == 2
    captured = capsys.readouterr()
    assert re.search(r"\nWARN: Tensor # 0 is named \S+ but flags call it other\n", captured.out)
    assert "ERROR: Input tensor #0 should have 4 dimensions!" in captured.err
    assert benchmark(model, "--input_layer=a,b", "--input_layer_shape=1,4:1,4") == 2
    assert "--input_layer names 2 inputs, the model has 1: " in capsys.readouterr().err


def test_other_shapes_and_a_file(tmp_path: Path, model: str) -> None:
    values = np.linspace(-1, 1, 2 * 4 * 4 * 4, dtype=np.float32)
    source, target = tmp_path / "in:put.bin", tmp_path / "output.bin"
    if sys.platform == "win32":
        source = tmp_path / "input.bin"
    values.tofile(source)
    where = str(source).replace(":", "::")
    flags = ("--input_layer=x", "--input_layer_shape=2,4,4,4", f"--output_filepath={target}")
    assert benchmark(model, *GPU, *flags, f"--input_layer_value_files=x:{where}") == 0
    expected = 1 / (1 + np.exp(-np.abs(values)))
    np.testing.assert_allclose(np.fromfile(target, np.float32), expected, atol=1e-5)


def test_settings_that_the_runtime_lacks_are_named(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(model, "--use_caching=true", "--max_profiling_buffer_entries=9") == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "WARN: --use_caching has no effect: the runtime's Python interface has no such setting."
    ) in lines
    assert (
        "WARN: --max_profiling_buffer_entries has no effect: the profile is not limited."
    ) in lines


def test_flags_that_need_another_are_named(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.csv"
    flags = (f"--op_profiling_output_file={path}", "--memory_footprint_check_interval_ms=9")
    assert benchmark(model, *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    for needed, name, value in (
        ("enable_op_profiling", "op_profiling_output_file", path),
        ("report_peak_memory_footprint", "memory_footprint_check_interval_ms", 9),
    ):
        assert (
            f"WARN: `--{needed}=true` must be set for the provided {name} ({value}) to be used."
        ) in lines
    assert not path.exists()


def test_a_dry_run_runs_nothing(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(GpuDelegate, "profile", None)
    assert benchmark(model, *GPU, "--dry_run=true", "--enable_op_profiling") == 0
    text = capsys.readouterr().out
    assert text.count("INFO: count=0 p5=0 median=0 p95=0\n") == 2
    assert "Latency percentiles" not in text


def test_signatures_are_listed(
    monkeypatch: pytest.MonkeyPatch, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(model, "--list_signatures") == 1
    assert "INFO: The Model contains 0 signature key(s).\n" in capsys.readouterr().out
    monkeypatch.setattr(
        runtime.load().Interpreter, "get_signature_list", lambda self: {"encode": {}, "decode": {}}
    )
    assert benchmark(model, "--list_signatures") == 1
    captured = capsys.readouterr()
    assert captured.out.endswith(
        "INFO: The Model contains 2 signature key(s).\nINFO: They are listed below: \n"
        "INFO: -> Signature Key: encode\nINFO: -> Signature Key: decode\n"
    )
    assert "--list_signatures only lists the signatures." in captured.err


def test_the_result_file(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.pb"
    assert benchmark(model, f"--result_file_path={path}", "--benchmark_name=a name") == 0
    text = capsys.readouterr().out
    result = dict(parsed(path.read_bytes()))
    latency, misc = dict(parsed(result[2])), dict(parsed(result[4]))
    assert result[1] == b"a name"
    assert sorted(latency) == list(range(1, 11))
    timings = re.search(
        r"Init: (\d+), First inference: (\d+), Warmup \(avg\): (\S+), Inference \(avg\): (\S+)",
        text,
    )
    assert timings
    printed = [float(figure) / 1e3 for figure in timings.groups()]
    assert [latency[number] for number in (8, 9, 10, 1)] == pytest.approx(printed, rel=1e-4)
    assert latency[2] <= latency[6] <= latency[5] <= latency[7] <= latency[3]
    assert (misc[2], misc[3]) == (3, 1)
    assert misc[1] == pytest.approx(Path(model).stat().st_size / 1e6)
    # The average is in whole microseconds, of which so small a model may take none.
    seconds = latency[1] / 1e3
    assert misc[4] == pytest.approx(4 * 4 * 4 * 4 / 2**20 / seconds if seconds else 0, rel=1e-4)
    assert sorted(dict(parsed(result[3]))) == ([1, 2] if HAS_PEAK else [])


# Models that others opened, and outputs as a tf.Example


def test_a_model_behind_a_descriptor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = chain(["ABS"])
    path = tmp_path / "package.bin"
    path.write_bytes(b"before" + content + b"after")
    with path.open("rb") as opened:
        graph = f"fd:{opened.fileno()}:6:{len(content)}"
        assert benchmark(graph) == 0
        assert f"INFO: Loaded model {graph}\n" in capsys.readouterr().out
        assert benchmark(f"fd:{opened.fileno()}:7:{len(content) + 5}") == 1
        size = len(content) + 5
        assert f"there are {size - 1} bytes of {size} after 7. Give the" in capsys.readouterr().err
    assert benchmark("fd:3:x:9") == 1
    error = capsys.readouterr().err
    assert error.startswith("ERROR: Failed to load model fd:3:x:9\n")
    assert "--graph=fd:3:x:9 is not fd:DESCRIPTOR:OFFSET:SIZE. Write three integers" in error
    assert benchmark("fd:987654:0:9") == 1
    assert "file descriptor 987654 cannot be read there (" in capsys.readouterr().err


def test_outputs_as_an_example(tmp_path: Path, model: str) -> None:
    target, raw = tmp_path / "outputs.pb", tmp_path / "outputs.raw"
    flags = (f"--output_proto_filepath={target}", f"--output_filepath={raw}")
    assert benchmark(model, *GPU, *flags) == 0
    ((number, features),) = parsed(target.read_bytes())
    ((entry, feature),) = parsed(features)
    pair = dict(parsed(feature))
    ((kind, floats),) = parsed(pair[2])
    ((values, packed),) = parsed(floats)
    assert (number, entry, kind, values) == (1, 1, 2, 1)
    assert isinstance(pair[1], bytes) and pair[1]
    assert packed == raw.read_bytes()


def test_features_by_type() -> None:
    def feature(*values: Any, kind: str) -> tuple[int, list[Any]]:
        content = example({"y": np.array(values, kind)})
        ((number, found),) = parsed(dict(parsed(dict(parsed(dict(parsed(content))[1]))[1]))[2])
        return number, [value for _, value in parsed(found)]

    assert feature(b"one", b"", kind="S") == (1, [b"one", b""])
    assert feature("one", kind="O") == (1, [b"one"])
    assert feature(1.5, kind="f2") == (2, [np.float32(1.5).tobytes()])
    assert feature(3, 270, kind="i4") == (3, [bytes.fromhex("038e02")])
    assert feature(-1, kind="i1") == (3, [b"\xff" * 9 + b"\x01"])
    assert feature(True, False, kind="?") == (3, [b"\x01\x00"])
    with pytest.raises(ModelError, match=r"output y is complex64, which a tf\.Example cannot"):
        example({"y": np.zeros(1, np.complex64)})


def test_clustering_may_be_disabled(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(model, *GPU, "--disable_delegate_clustering=true") == 0
    assert "INFO: Disable delegate clustering: [1]\n" in capsys.readouterr().out
    original = runtime.load().Interpreter

    def old(**keywords: Any) -> Any:
        if "experimental_disable_delegate_clustering" in keywords:
            raise TypeError("unexpected keyword")
        return original(**keywords)

    monkeypatch.setattr(runtime.load(), "Interpreter", old)
    assert benchmark(model, "--disable_delegate_clustering=true") == 1
    assert (
        "This runtime cannot disable the clustering of delegates (unexpected keyword). Use a newer"
    ) in capsys.readouterr().err
    assert benchmark(model) == 0


def test_a_librarys_trial_is_not_part_of_creation(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tried(*arguments: Any) -> Any:
        found = make_delegates(*arguments)
        time.sleep(0.7)
        (gpu,) = found.applied
        return replace(found, applied=(replace(gpu, trial_seconds=0.7),))

    def init() -> float:
        assert benchmark(model, *GPU) == 0
        found = re.search(r"Initialized session in (\S+)ms", capsys.readouterr().out)
        assert found
        return float(found[1])

    init()
    monkeypatch.setattr(benchmark_session, "make_delegates", tried)
    assert init() < 700


@pytest.fixture
def signed(tmp_path: Path) -> str:
    """A file with the signatures `encode` and `decode`, a graph each."""
    folder = tmp_path / "signed"
    folder.mkdir()
    return saved(folder, encode_and_decode())


@pytest.mark.parametrize(
    ("key", "function"), [("encode", np.abs), ("decode", lambda x: 1 / (1 + np.exp(-x)))]
)
def test_a_signature_is_run(
    signed: str,
    key: str,
    function: Callable[[Any], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values, target = np.linspace(-1, 1, 2 * 2 * 2 * 4, dtype=np.float32), tmp_path / "out.raw"
    source = tmp_path / "in.raw"
    values.tofile(source)
    where = str(source).replace(":", "::")
    flags = [f"--signature_to_run_for={key}", f"--output_filepath={target}", "--input_layer=x"]
    flags += ["--input_layer_shape=2,2,2,4", f"--input_layer_value_files=x:{where}"]
    assert benchmark(signed, *GPU, *flags, "--enable_op_profiling") == 0
    text = capsys.readouterr().out
    np.testing.assert_allclose(np.fromfile(target, np.float32), function(values), atol=1e-5)
    assert f"INFO: Graph: [{signed}]\nINFO: Signature to run: [{key}]\n" in text
    assert f"INFO: Loaded model {signed}\nINFO: Using signature: {key}\nINFO: GPU del" in text
    internal = text.split("Delegate internal:")[1]
    op = {"encode": "ABS", "decode": "LOGISTIC"}[key]
    assert [name for name in ("ABS", "LOGISTIC") if name in internal] == [op]


def test_a_signature_that_is_not_there(
    signed: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(signed, "--signature_to_run_for=encoder") == 1
    captured = capsys.readouterr()
    said = "--signature_to_run_for=encoder: there is no such signature. Did you mean 'encode'?"
    assert said in captured.err
    assert "Using signature" not in captured.out
    assert benchmark(model, "--signature_to_run_for=encode") == 1
    assert "the model has no signatures. Leave the flag out." in capsys.readouterr().err


# Op profiles


def test_the_profile(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(model, *GPU, "--enable_op_profiling") == 0
    text = capsys.readouterr().out
    order = [
        "INFO: Profiling Info for Benchmark Initialization:",
        "AllocateTensors/0",
        "INFO: Operator-wise Profiling Info for Regular Benchmark Runs:",
        "TfLiteGpuDelegateV2",
        "Delegate internal: ",
        "ABS",
        "INFO: Computed by: ",
    ]
    positions = [text.index(each) for each in order]
    assert positions == sorted(positions)
    nodes = re.findall(r"\nNumber of nodes executed: (\d+)\n", text)
    assert nodes[:2] == ["2", "1"]
    assert int(nodes[2]) >= 1
    assert text.count("Summary by node type") == 3


def test_a_profile_of_a_shared_graph(
    tmp_path: Path, shared: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.csv"
    flags = ("--min_nodes_per_partition=1", "--enable_op_profiling")
    assert benchmark(shared, *GPU, *flags, f"--profiling_output_csv_file={path}") == 0
    lines = path.read_text().splitlines()
    assert "node type, first, avg_ms, %, cdf%, mem KB, times called, name" in lines
    assert any(re.match(r"TfLiteGpuDelegateV2, [\d.]+, [\d.]+, [\d.]+%, ", line) for line in lines)
    rest = [line for line in lines if line.startswith("CPU, ")]
    assert rest[0].endswith(", 1, 1 nodes, and the runtime, without times of single nodes")
    assert "Profiling Info" not in capsys.readouterr().out


def test_a_profile_has_only_the_graph_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path, with_subgraphs(chain(["ABS"]), chain(["LOGISTIC"])))
    assert benchmark(model, *GPU, "--enable_op_profiling") == 0
    text = capsys.readouterr().out
    assert re.findall(r"Number of nodes executed: (\d+)", text) == ["2", "1", "1"]
    assert "LOGISTIC" not in text


def test_a_profile_of_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = saved(tmp_path, chain(["LOGISTIC"], (1, 64, 64, 16)))
    assert benchmark(large, "--enable_op_profiling") == 0
    text = capsys.readouterr().out
    assert "WARN: The runtime's Python interface does not report the times of single nodes" in text
    assert re.search(r"\n\t +CPU\t +[\d.]+\t +[\d.]+\t100.000%\t100.000%\t +0.000\t +1\tall ", text)


def test_a_profile_as_a_proto(tmp_path: Path, model: str) -> None:
    path = tmp_path / "profile.pb"
    flags = ("--op_profiling_output_mode=proto", f"--op_profiling_output_file={path}")
    assert benchmark(model, *GPU, "--enable_op_profiling", *flags) == 0
    whole = dict(parsed(path.read_bytes()))
    assert whole[1] == b"model"
    assert names(dict(parsed(whole[2]))[1], 3) == [b"ModifyGraphWithDelegate", b"AllocateTensors"]
    runs = dict(parsed(whole[3]))
    assert names(runs[1], 3) == [b"TfLiteGpuDelegateV2"]
    assert dict(parsed(runs[2]))[1] == b"TfLiteGpuDelegateV2"
    assert b"ABS" in names(runs[2], 2)


def test_a_proto_without_a_file_is_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(model, *GPU, "--enable_op_profiling", "--op_profiling_output_mode=proto") == 0
    text = capsys.readouterr().out
    start = text.index('INFO: model_name: "model"\ninit_profile {\n  subgraph_profiles {\n')
    lines = text[start:].splitlines()
    assert '      node_type: "TfLiteGpuDelegateV2"' in lines
    assert '    delegate_name: "TfLiteGpuDelegateV2"' in lines
    assert lines.count("      inference_microseconds {") >= 4
    assert "        stddev: 0" in lines


def names(block: bytes, number: int) -> list[bytes]:
    """Return the node types of a block, whose operations are the field of that number."""
    ops = [dict(parsed(value)) for field, value in parsed(block) if field == number]
    assert [op[6] for op in ops] == list(range(len(ops)))
    assert all(dict(parsed(op[2])).keys() == set(range(1, 10)) for op in ops)
    return [op[1] for op in ops]


def test_a_profile_that_cannot_be_written(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark_model, "try_to_write", lambda *args: None)
    flag = f"--op_profiling_output_file={tmp_path}"
    assert benchmark(model, "--enable_op_profiling", flag) == 1
    assert f"{flag}: the file cannot be written" in capsys.readouterr().err
