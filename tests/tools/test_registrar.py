"""The delegate flags of TensorFlow Lite's tools, and the delegates that they create."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import pytest

from litegpu import (
    ExperimentalFlags,
    GpuDelegate,
    InferencePreference,
    InferencePriority,
    list_devices,
)
from litegpu.errors import OptionsError, UnsupportedDeviceError
from litegpu.options import GpuDelegateOptions, make_options
from litegpu.tools import registrar
from litegpu.tools.flags import FlagParser
from litegpu.tools.registrar import (
    LOG_NAMES,
    REGISTRAR_FLAGS,
    Delegates,
    ask_for_gpu,
    make_delegates,
    parameter_lines,
)
from small_models import CPU_ONLY, assert_close, chain, random, reference, run

MODEL = chain(["ABS", CPU_ONLY])
X = random(1, 4, 4, 4)


def parsed(*argv: str) -> argparse.Namespace:
    parser = FlagParser("litegpu test", "a test")
    parser.add_flags(REGISTRAR_FLAGS)
    return parser.parse(argv)


def check(delegates: Delegates) -> None:
    """Compare a run with all of it to the CPU's."""
    assert_close(run(delegates.interpreter(MODEL), X), reference(MODEL, X))


@pytest.fixture
def options_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What returns the options that the GPU delegate would be made with."""

    def options(*argv: str) -> GpuDelegateOptions:
        output: list[GpuDelegateOptions] = []
        monkeypatch.setattr(
            registrar,
            "GpuDelegate",
            lambda on_progress, **given: output.append(make_options(None, given)),
        )
        make_delegates(parsed("--use_gpu=true", *argv))
        return output[0]

    return options


def test_without_flags_the_runtime_does_as_it_likes(capsys: pytest.CaptureFixture[str]) -> None:
    found = make_delegates(parsed())
    assert found == Delegates(applied=(), threads=None, builtin_kernels=False)
    assert (found.gpu, found.items) == (None, ())
    assert found.describe() == "CPU (XNNPACK, threads: the runtime's choice)"
    assert capsys.readouterr() == ("", "")
    check(found)


def test_the_gpu_delegate_runs_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    backend = list_devices()[-1].backend
    flags = ["--gpu_precision_loss_allowed=false", "--num_threads=2", f"--gpu_backend={backend}"]
    found = make_delegates(parsed("--use_gpu=true", *flags))
    said = capsys.readouterr().out.splitlines()
    assert isinstance(found.gpu, GpuDelegate) and found.items == (found.gpu,)
    software = " (software)" if found.gpu.device.software else ""
    assert said == [
        "INFO: GPU delegate created.",
        f"INFO: GPU delegate: {found.gpu.device.title}{software}, fp32",
    ]
    check(found)
    assert found.gpu.report is not None
    assert (found.gpu.report.backend, found.gpu.report.delegated_nodes) == (backend, [0])
    assert found.describe() == "GPU, CPU (XNNPACK, threads: 2)"


def test_precision_is_lost_only_where_a_flag_permits_it(options_of: Any) -> None:
    assert options_of() == GpuDelegateOptions(cache=False, quick_start=False), (
        "what is measured is one code"
    )
    assert options_of("--gpu_precision_loss_allowed") == GpuDelegateOptions(
        inference_priority1=InferencePriority.MIN_LATENCY,
        inference_priority2=InferencePriority.MIN_MEMORY_USAGE,
        inference_priority3=InferencePriority.MAX_PRECISION,
        cache=False,
        quick_start=False,
    )


def test_the_precision_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    make_delegates(parsed("--use_gpu=true"))
    assert "fp32 (the default; --precision=fp16 stores half)" in capsys.readouterr().out
    make_delegates(parsed("--precision=fp16"))
    assert capsys.readouterr().out.endswith(", fp16\n")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (
            ["--use_gpu=false", "--backend=gl"],
            "--backend=gl is an option of the GPU delegate, but --use_gpu=false excludes that",
        ),
        (
            ["--gpu_backend=cl", "--backend=gl"],
            "--gpu_backend=cl and --backend=gl set the same. Leave one of them out",
        ),
        (
            ["--precision=fp32", "--gpu_precision_loss_allowed=true"],
            "--gpu_precision_loss_allowed=True and --precision=fp32 set the same",
        ),
    ],
)
def test_flags_that_do_not_go_together(flags: list[str], error: str) -> None:
    with pytest.raises(OptionsError, match=error):
        make_delegates(parsed(*flags))


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--max_delegated_partitions=2"], True),
        (["--gpu_backend=any"], True),
        (["--max_delegated_partitions=2", "--use_gpu=false"], False),
        (["--max_delegated_partitions=2", "--use_xnnpack=true"], False),
        (["--num_threads=2"], False),
    ],
)
def test_flags_of_several_delegates_ask_for_the_gpu_where_no_other_is_named(
    flags: list[str], wanted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    args = parsed(*flags)
    ask_for_gpu(args)
    assert args.use_gpu is wanted
    flag = flags[0].partition("=")[0]
    said = f"INFO: {flag} requests the GPU delegate.\n" if wanted else ""
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("flag", ["--backend=gl", "--gpu_backend=gl", "--device=nothing"])
def test_a_gpu_that_is_named_and_absent_is_an_error(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise UnsupportedDeviceError("no device of any backend")

    monkeypatch.setattr(registrar, "GpuDelegate", refuse)
    with pytest.raises(UnsupportedDeviceError, match="no device of any backend"):
        make_delegates(parsed(flag))


_QUANT, _SERIAL = ExperimentalFlags.ENABLE_QUANT, ExperimentalFlags.ENABLE_SERIALIZATION


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (["--gpu_experimental_enable_quant=false"], {"experimental_flags": 0}),
        (
            ["--gpu_inference_for_sustained_speed"],
            {"inference_preference": InferencePreference.SUSTAINED_SPEED},
        ),
        (["--gpu_backend=gl"], {"backend": "gl"}),
        (["--gpu_unsafe_cache"], {"unsafe_cache": True}),
        (["--gpu_unsafe_cache=false"], {"unsafe_cache": False}),
        (["--max_delegated_partitions=3"], {"max_delegated_partitions": 3}),
        (["--min_nodes_per_partition=2"], {"min_nodes_per_partition": 2}),
        (["--min_nodes_per_partition=0"], {"min_nodes_per_partition": 0}),
        (["--min_nodes_per_partition=-1"], {"min_nodes_per_partition": None}),
        (
            ["--first_delegate_node_index=1", "--last_delegate_node_index=5"],
            {"first_delegate_node_index": 1, "last_delegate_node_index": 5},
        ),
        (
            ["--delegate_serialize_dir=folder", "--delegate_serialize_token=name"],
            {
                "experimental_flags": _QUANT | _SERIAL,
                "serialization_dir": "folder",
                "model_token": "name",
                "cache": None,
            },
        ),
    ],
)
def test_flags_become_options(options_of: Any, flags: list[str], fields: dict[str, Any]) -> None:
    assert options_of(*flags) == dataclasses.replace(options_of(), **fields)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(OptionsError, match="Unknown backend 'clx'"):
        make_delegates(parsed("--use_gpu=true", "--gpu_backend=clx"))


def test_without_a_gpu_the_cpu_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: Any) -> None:
        raise UnsupportedDeviceError("no device of any backend")

    monkeypatch.setattr(registrar, "GpuDelegate", refuse)
    args = parsed("--use_gpu=true")
    found = make_delegates(args)
    assert found.applied == ()
    assert capsys.readouterr().out == (
        "WARN: GPU acceleration is unsupported on this platform.\nWARN: no device of any backend\n"
    )
    check(found)


@pytest.mark.parametrize(
    ("flag", "warning"),
    [
        ("use_nnapi", "NNAPI acceleration is unsupported on this platform."),
        ("use_coreml", "CoreML acceleration is unsupported on this platform."),
        (
            "use_hexagon",
            "Could not create Hexagon delegate: platform may not support delegate or required "
            "libraries are missing",
        ),
    ],
)
def test_delegates_of_other_platforms(
    flag: str, warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = make_delegates(parsed(f"--{flag}=true"))
    assert capsys.readouterr().out.splitlines()[-1] == f"WARN: {warning}"
    check(found)


def test_xnnpack_is_the_runtimes_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = make_delegates(parsed("--use_xnnpack=true", "--xnnpack_force_fp16=true"))
    assert [each.name for each in found.applied] == ["XNNPACK"] and found.items == ()
    assert capsys.readouterr().out == (
        "WARN: The Python runtime has no way to force XNNPACK to float16; it computes in float32.\n"
        "INFO: XNNPACK delegate created.\n"
    )
    check(found)


def test_only_an_explicit_false_switches_xnnpack_off() -> None:
    found = make_delegates(parsed("--use_xnnpack=false", "--num_threads=0"))
    assert found.builtin_kernels and found.threads == 1
    assert found.describe() == "CPU (built-in kernels, threads: 1)"
    operations = {each["op_name"] for each in found.interpreter(MODEL)._get_ops_details()}
    assert operations == {"ABS", CPU_ONLY}


@pytest.mark.parametrize("order", [1, -1])
def test_xnnpack_comes_last_in_any_order(order: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = make_delegates(parsed(*["--use_gpu=true", "--use_xnnpack=true"][::order]))
    assert [each.name for each in found.applied] == ["GPU", "XNNPACK"]
    created, _, *warnings = capsys.readouterr().out.splitlines()
    assert created == "INFO: GPU delegate created."
    late = "WARN: The Python runtime applies XNNPACK automatically, after all other delegates."
    assert warnings == ([] if order > 0 else [late])


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (["--gpu_wait_type=passive"], "Unconsumed cmdline flags: --gpu_wait_type=passive"),
        (
            ["--nnapi_accelerator_name=npu"],
            "`--use_nnapi=true` must be set for the provided NNAPI accelerator name (npu) to be "
            "used.",
        ),
        (
            ["--gpu_precision_loss_allowed=false", "--use_gpu=false"],
            "`--use_gpu=true` must be set for the provided Allow lower precision in gpu (0) to be "
            "used.",
        ),
        (
            ["--gpu_quantized=float", "--use_gpu=false"],
            "`--use_gpu=true` must be set for the provided Quantized tensors in gpu (float) to be "
            "used.",
        ),
        (
            ["--gpu_unsafe_cache", "--use_gpu=false"],
            "`--use_gpu=true` must be set for the provided Folders that others write to allowed in "
            "gpu (1) to be used.",
        ),
        (
            ["--delegate_serialize_dir=folder", "--use_gpu=false"],
            "Nothing is cached: --delegate_serialize_dir and --delegate_serialize_token must both "
            "be set.",
        ),
    ],
)
def test_a_flag_that_changes_nothing_is_named(
    flags: list[str],
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("LITEGPU_CACHE", raising=False)
    make_delegates(parsed(*flags))
    assert capsys.readouterr().out == f"WARN: {warning}\n"


def test_half_of_what_serialization_needs_serves_where_the_environment_asks_for_it(
    options_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, field in (("dir", "serialization_dir"), ("token", "model_token")):
        flags = [f"--delegate_serialize_{flag}=given"]
        monkeypatch.delenv("LITEGPU_CACHE", raising=False)
        assert options_of(*flags) == options_of()
        assert "Nothing is cached: " in capsys.readouterr().out
        monkeypatch.setenv("LITEGPU_CACHE", "1")
        assert options_of(*flags) == dataclasses.replace(options_of(), **{field: "given"})
        assert "Nothing is cached" not in capsys.readouterr().out


def test_parameters_are_named_as_the_original_does() -> None:
    args = parsed("--use_xnnpack=true", "--gpu_backend=cl", "--num_threads=4")
    assert parameter_lines(args) == [
        "#threads used for CPU inference: [4]",
        "GPU backend: [cl]",
        "Use xnnpack: [1]",
    ]
    assert len(parameter_lines(args, verbose=True)) == len(LOG_NAMES)


def test_threads_below_minus_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--num_threads=-2")
    assert "'-2' is not a whole number of at least -1" in capsys.readouterr().err
