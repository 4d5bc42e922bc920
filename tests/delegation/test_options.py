"""The delegate's options: rules of the C API, litegpu's own fields, invalid values."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate, GpuDelegateOptions, OptionsError
from litegpu.errors import closest, did_you_mean
from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy
from litegpu.options import (
    ExperimentalFlags,
    InferencePreference,
    InferencePriority,
    make_options,
)
from litegpu.runtime_abi.interpreter import interpreter
from small_models import chain

AUTO, PRECISION, LATENCY, MEMORY = range(4)


def options(*priorities: int, **fields: Any) -> GpuDelegateOptions:
    names = ("inference_priority1", "inference_priority2", "inference_priority3")
    given: dict[str, Any] = dict(zip(names, priorities, strict=False))
    return GpuDelegateOptions(**given, **fields)


def test_defaults_are_those_of_the_c_api() -> None:
    """The number of partitions is determined by estimates instead of 1."""
    found = GpuDelegateOptions()
    assert found.is_precision_loss_allowed == -1
    assert found.inference_preference == 0
    assert (found.inference_priority1, found.inference_priority2) == (1, 0)
    assert found.inference_priority3 == 0
    assert found.experimental_flags == 1
    assert found.max_delegated_partitions is None
    assert found.first_delegate_node_index == 0
    assert found.last_delegate_node_index == 2**31 - 1
    assert found.min_nodes_per_partition is None
    assert found.serialization_dir is None and found.model_token is None
    assert found.backend is None and found.device is None and found.precision is None


def test_enumerations_have_the_numbers_of_the_c_api() -> None:
    assert [int(p) for p in InferencePreference] == [0, 1, 2]
    assert [int(p) for p in InferencePriority] == [0, 1, 2, 3]
    flags = {flag.name: int(flag) for flag in ExperimentalFlags}
    known = {"ENABLE_QUANT": 1, "CL_ONLY": 2, "GL_ONLY": 4, "ENABLE_SERIALIZATION": 8}
    assert flags.items() >= known.items()


RESOLVED = {
    (LATENCY, AUTO, AUTO): (LATENCY, MEMORY, PRECISION),
    (MEMORY, AUTO, AUTO): (MEMORY, PRECISION, LATENCY),
    (PRECISION, AUTO, AUTO): (PRECISION, LATENCY, MEMORY),
    (LATENCY, PRECISION, AUTO): (LATENCY, PRECISION, MEMORY),
    (LATENCY, MEMORY, AUTO): (LATENCY, MEMORY, PRECISION),
    (MEMORY, LATENCY, AUTO): (MEMORY, LATENCY, PRECISION),
    (MEMORY, PRECISION, AUTO): (MEMORY, PRECISION, LATENCY),
    (PRECISION, LATENCY, AUTO): (PRECISION, LATENCY, MEMORY),
    (PRECISION, MEMORY, AUTO): (PRECISION, MEMORY, LATENCY),
    **{order: order for order in itertools.permutations((PRECISION, LATENCY, MEMORY))},
}


@pytest.mark.parametrize("given", RESOLVED)
def test_auto_priorities_are_resolved(given: tuple[int, int, int]) -> None:
    assert options(*given).priorities() == RESOLVED[given]


def test_all_other_priorities_are_invalid() -> None:
    for given in set(itertools.product(range(-1, 5), repeat=3)) - set(RESOLVED):
        with pytest.raises(OptionsError, match="InferenceOptions are invalid: pri") as caught:
            options(*given)
        assert f"priorities {given}." in str(caught.value)
        assert "after AUTO only AUTO may follow" in str(caught.value)


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (0, (PRECISION, LATENCY, MEMORY)),
        (1, (LATENCY, MEMORY, PRECISION)),
        (7, (LATENCY, MEMORY, PRECISION)),
        (True, (LATENCY, MEMORY, PRECISION)),
        (False, (PRECISION, LATENCY, MEMORY)),
        (-1, (MEMORY, LATENCY, PRECISION)),
    ],
)
def test_precision_loss_overrides_the_priorities(
    allowed: int, expected: tuple[int, int, int]
) -> None:
    found = options(MEMORY, LATENCY, PRECISION, is_precision_loss_allowed=allowed)
    assert found.priorities() == expected


def test_precision_loss_drops_priorities_that_would_be_invalid() -> None:
    assert options(AUTO, AUTO, AUTO, is_precision_loss_allowed=1).resolved_precision() == "fp16"


PRECISIONS = [
    ({}, "fp32", FP32),
    ({"inference_priority1": LATENCY}, "fp16", FP16),
    ({"inference_priority1": LATENCY, "inference_priority2": PRECISION}, "fp16", FP16),
    ({"inference_priority1": MEMORY}, "fp16", FP16_ALL),
    ({"is_precision_loss_allowed": 0, "inference_priority1": LATENCY}, "fp32", FP32),
    ({"is_precision_loss_allowed": 1}, "fp16", FP16),
    ({"precision": "fp16"}, "fp16", FP16),
    ({"precision": "fp32", "inference_priority1": MEMORY}, "fp32", FP32),
    ({"precision": "fp16", "inference_priority1": MEMORY}, "fp16", FP16_ALL),
    ({"precision": "fp16", "inference_priority2": MEMORY}, "fp16", FP16_ALL),
    ({"inference_priority1": LATENCY, "inference_priority2": MEMORY}, "fp16", FP16),
    ({"inference_priority2": MEMORY}, "fp32", FP32),
]


@pytest.mark.parametrize(("fields", "precision", "policy"), PRECISIONS)
def test_precision_follows(fields: dict[str, Any], precision: str, policy: NumericPolicy) -> None:
    found = GpuDelegateOptions(**fields)
    assert found.resolved_precision() == precision
    assert found.numeric_policy() == policy


@pytest.mark.parametrize(
    ("fields", "backend"),
    [
        ({}, None),
        ({"experimental_flags": ExperimentalFlags.CL_ONLY}, "opencl"),
        ({"experimental_flags": ExperimentalFlags.GL_ONLY}, "opengl"),
        ({"experimental_flags": 2 + 4}, "opencl"),
        ({"experimental_flags": 4, "backend": "opencl"}, "opencl"),
        ({"experimental_flags": 0}, None),
    ],
)
def test_the_backend_follows(fields: dict[str, Any], backend: str | None) -> None:
    assert GpuDelegateOptions(**fields).resolved_backend() == backend


@pytest.mark.parametrize(
    ("fields", "folder"),
    [
        (
            {"experimental_flags": 8, "serialization_dir": "here", "model_token": "m"},
            ("here", "m", False),
        ),
        ({"serialization_dir": "here", "model_token": "m"}, ("here", "m", False)),
        ({"serialization_dir": "here", "model_token": "m", "cache": True}, ("here", "m", False)),
        ({"serialization_dir": "here", "model_token": "m", "cache": False}, None),
        ({"serialization_dir": "here", "cache": True}, ("here", "", False)),
        ({"cache": True}, ("named", "", False)),
        ({"cache": True, "unsafe_cache": True}, ("named", "", True)),
        (
            {"serialization_dir": "here", "model_token": "m", "unsafe_cache": True},
            ("here", "m", True),
        ),
        ({"cache": False}, None),
        ({"unsafe_cache": True}, ("named", "", True)),
        ({"experimental_flags": 8, "serialization_dir": "here"}, ("here", "", False)),
        ({"experimental_flags": 8, "model_token": "m"}, ("named", "m", False)),
        ({}, ("named", "", False)),
    ],
)
def test_partitions_are_cached_by_default(
    fields: dict[str, Any], folder: tuple[str, str, bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litegpu.options.default_folders", lambda: [Path("named")])
    monkeypatch.delenv("LITEGPU_CACHE", raising=False)
    found = GpuDelegateOptions(**fields).cache_folder()
    requested = "cache" in fields or {"serialization_dir", "model_token"} <= set(fields)
    assert found == (None if folder is None else (*folder, requested, ()))
    monkeypatch.setenv("LITEGPU_CACHE", "0")
    found = GpuDelegateOptions(**fields).cache_folder()
    assert found == ((*folder, True, ()) if folder is not None and requested else None)


def test_the_environment_names_several_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files go to the first writable folder, and all folders are read."""
    shipped, own, last = (str(tmp_path / name) for name in ("shipped", "own", "last"))
    Path(shipped).mkdir()
    monkeypatch.setenv("LITEGPU_CACHE_PATH", os.pathsep.join([shipped, "", own, last]))
    for value in ("", "1"):
        monkeypatch.setenv("LITEGPU_CACHE", value)
        found = GpuDelegateOptions().cache_folder()
        assert found == (shipped, "", False, True, (own, last))
    monkeypatch.setenv("LITEGPU_CACHE", "0")
    assert GpuDelegateOptions().cache_folder() is None
    monkeypatch.setenv("LITEGPU_CACHE", last)
    assert GpuDelegateOptions().cache_folder() == (last, "", False, True, (shipped, own))
    named = GpuDelegateOptions(cache=own).cache_folder()
    assert named == (own, "", False, True, ()), "an option names the only folder"
    monkeypatch.delenv("LITEGPU_CACHE")
    accessible = os.access
    monkeypatch.setattr(os, "access", lambda p, m: str(p) != shipped and accessible(p, m))
    assert GpuDelegateOptions().cache_folder() == (own, "", False, True, (shipped, last))
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "folder")
    monkeypatch.setenv("LITEGPU_CACHE_PATH", os.pathsep.join([nowhere, shipped]))
    found = GpuDelegateOptions().cache_folder()
    assert found == (nowhere, "", False, True, (shipped,)), "the first one, which is reported"


def test_the_environment_asks_for_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("0", "no", "False", "off"):
        monkeypatch.setenv("LITEGPU_CACHE", value)
        assert GpuDelegateOptions().cache_folder() is None
    usual = GpuDelegateOptions(cache=True).cache_folder()
    assert usual is not None
    monkeypatch.setenv("LITEGPU_CACHE", "")
    assert GpuDelegateOptions().cache_folder() == usual._replace(requested=False)
    for value in ("1", "true", "Yes", "on"):
        monkeypatch.setenv("LITEGPU_CACHE", value)
        assert GpuDelegateOptions().cache_folder() == usual
    assert usual.folder.endswith(str(Path("litegpu") / "partitions"))
    monkeypatch.setenv("LITEGPU_CACHE", "elsewhere")
    assert GpuDelegateOptions().cache_folder() == ("elsewhere", "", False, True, ())
    assert GpuDelegateOptions(cache=False).cache_folder() is None
    there = GpuDelegateOptions(serialization_dir="~/kept", model_token="m").cache_folder()
    assert there == (str(Path("~/kept").expanduser()), "m", False, True, ())
    monkeypatch.setenv("LITEGPU_CACHE_UNSAFE", "1")
    assert GpuDelegateOptions().cache_folder() == ("elsewhere", "", True, True, ())
    assert GpuDelegateOptions(unsafe_cache=False).cache_folder() == (
        "elsewhere",
        "",
        False,
        True,
        (),
    )
    for value in ("0", "false"):
        monkeypatch.setenv("LITEGPU_CACHE_UNSAFE", value)
        assert GpuDelegateOptions().cache_folder() == ("elsewhere", "", False, True, ())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"experimental_flags": 9, "serialization_dir": "d", "model_token": "m"}, ""),
        ({"serialization_dir": "d", "model_token": "m"}, ""),
        (
            {"experimental_flags": 8},
            "Compiled partitions are not cached, because LITEGPU_CACHE disables the cache. Set "
            "cache=True, or both "
            "serialization_dir and model_token.",
        ),
        ({"experimental_flags": 8, "serialization_dir": "d"}, "Set cache=True, or both"),
        ({"serialization_dir": "d"}, "LITEGPU_CACHE disables the cache."),
        ({"unsafe_cache": True}, "LITEGPU_CACHE disables the cache."),
        (
            {"experimental_flags": 8, "cache": False},
            "Compiled partitions are not cached, because cache is False.",
        ),
    ],
)
def test_half_of_what_serialization_needs_is_a_warning(
    fields: dict[str, Any],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("LITEGPU_CACHE", "0")
    assert text in GpuDelegateOptions(**fields).unused()
    GpuDelegate(**fields)
    assert text in caplog.text
    assert ("Compiled partitions are not cached" in caplog.text) == bool(text)


def test_numbers_and_paths_of_other_types_are_welcome() -> None:
    found = GpuDelegateOptions(
        inference_priority1=np.int64(2),  # type: ignore[arg-type]
        device=np.uint8(0),  # type: ignore[arg-type]
        serialization_dir=Path("cache"),  # type: ignore[arg-type]
    )
    assert found == GpuDelegateOptions(
        inference_priority1=2, device=0, serialization_dir=str(Path("cache"))
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"precision": "fp64"},
            r"Unknown precision 'fp64'. Did you mean 'fp\d\d'\? Known: fp32, float32, ",
        ),
        ({"precision": 16}, "Unknown precision '16'. Did you mean 'fp16'?"),
        ({"precision": "flaot16"}, "Unknown precision 'flaot16'. Did you mean 'float16'?"),
        (
            {"quantized": "exakt"},
            "Unknown way to compute quantized tensors 'exakt'. Did you mean 'exact'\\? "
            "Known: exact, float.",
        ),
        (
            {"inference_preference": 3},
            r"inference_preference 3 is not one of FAST_SINGLE_ANSWER \(0\), "
            r"SUSTAINED_SPEED \(1\), BALANCED \(2\).",
        ),
        (
            {"experimental_flags": 17},
            r"experimental_flags 17 has unknown bits; known are .*CL_ONLY \(2\)",
        ),
        ({"experimental_flags": -1}, "experimental_flags -1 has unknown bits"),
        (
            {"max_delegated_partitions": "2"},
            "max_delegated_partitions must be a whole number, not '2'.",
        ),
        ({"inference_priority1": 1.0}, "inference_priority1 must be a whole number, not 1.0."),
        (
            {"inference_priority1": "MIN_MEMORY_USAGE"},
            "inference_priority1 must be a whole number, not 'MIN_MEMORY_USAGE'. "
            r"litegpu.InferencePriority has them: AUTO \(0\), MAX_PRECISION \(1\), ",
        ),
        ({"is_precision_loss_allowed": None}, "is_precision_loss_allowed must be a whole number"),
        ({"device": 1.5}, "device must be a device's number or part of its name, not 1.5."),
        ({"backend": 3}, "backend must be text without null characters, not 3."),
        (
            {"serialization_dir": "a\0b"},
            r"serialization_dir must be text without .* not 'a\\x00b'.",
        ),
        ({"cache": "yes"}, "cache must be True, False or None or a folder, not 'yes'."),
        ({"cache": ""}, "cache must be True, False or None or a folder, not ''."),
        ({"cache": 1}, "cache must be True, False or None or a folder, not 1."),
        ({"cache": "a\0b"}, "cache must be text without null characters"),
        (
            {"cache": "a", "serialization_dir": "b"},
            "cache and serialization_dir name different folders, 'a' and 'b'. Give one of them.",
        ),
        ({"unsafe_cache": 1}, "unsafe_cache must be True, False or None, not 1."),
        ({"model_token": b"x"}, "model_token must be text without null characters, not b'x'."),
        (
            {"serialization_dir": 3},
            "serialization_dir must be text without null characters, not 3.",
        ),
        ({"presision": "fp16"}, "Unknown option 'presision'. Did you mean 'precision'?"),
        ({"qqq": 1}, "Unknown option 'qqq'. Known: is_precision_loss_allowed, "),
    ],
)
def test_impossible_options(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=text.replace("'?", r"'\?")):
        make_options(None, fields)
    with pytest.raises(OptionsError, match=text.replace("'?", r"'\?")):
        GpuDelegate(fields)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=text.replace("'?", r"'\?")):
        GpuDelegate(**fields)


def test_the_case_of_names_does_not_matter() -> None:
    found = make_options({"precision": "FP16", "backend": "OpenCL"}, {})  # type: ignore[arg-type]
    assert found.resolved_precision() == "fp16"
    assert GpuDelegate(found).device.backend == "opencl"


@pytest.mark.parametrize(
    ("name", "precision"),
    [("float16", "fp16"), ("Half", "fp16"), ("float32", "fp32"), ("single", "fp32")],
)
def test_precisions_have_the_names_of_other_libraries(name: Any, precision: str) -> None:
    found = make_options(None, {"precision": name})
    assert found.precision == found.resolved_precision() == precision
    assert GpuDelegate(precision=name).precision == precision


@pytest.mark.parametrize("name", ["auto", "GPU"])
def test_any_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LITEGPU_BACKEND", "LITEGPU_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    assert GpuDelegate(backend=name).device == GpuDelegate().device
    assert GpuDelegateOptions(backend=name, experimental_flags=5).resolved_backend() == "opengl"
    monkeypatch.setenv("LITEGPU_BACKEND", name)
    assert GpuDelegate().device == GpuDelegate(backend="auto").device


@pytest.mark.parametrize("kind", [str, Path])
def test_the_cache_may_be_a_folder(kind: type[Any], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    delegate = GpuDelegate(cache=kind(folder))
    assert (delegate.options.cache, delegate.options.serialization_dir) == (True, str(folder))
    interpreter(chain(["ABS"]), delegate)
    assert [path for path in folder.rglob("*") if path.is_file()]
    again = make_options(delegate.options, {"precision": "fp16"})
    assert again.serialization_dir == str(folder)


@pytest.mark.parametrize("given", [3, "fp16", [("precision", "fp16")]])
def test_options_of_a_wrong_type(given: Any) -> None:
    expected = f"options must be GpuDelegateOptions or a dict, not {type(given).__name__}."
    with pytest.raises(OptionsError, match=expected):
        GpuDelegate(given)


def test_keywords_override_options() -> None:
    base = GpuDelegateOptions(precision="fp32", max_delegated_partitions=3)
    found = make_options(base, {"precision": "fp16"})
    assert (found.precision, found.max_delegated_partitions) == ("fp16", 3)
    assert make_options({"device": 2}, {"device": 0}).device == 0
    assert base.precision == "fp32"


def test_hints() -> None:
    assert did_you_mean("open-cl", ["cuda", "opencl"]) == (
        " Did you mean 'opencl'? Known: cuda, opencl."
    )
    assert did_you_mean("zzz", ["cuda"]) == " Known: cuda."
    assert closest("context", ["text", "contexts"]) == "contexts"
    assert closest("zzz", ["cuda"]) is None
