"""Every option of the delegate is a flag of every tool that creates one."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest

from litegpu import ExperimentalFlags, GpuDelegateOptions, InferencePreference, InferencePriority
from litegpu.options import make_options
from litegpu.tools import cli, delegation, registrar
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate
from litegpu.tools.flags import FlagParser
from litegpu.tools.registrar import REGISTRAR_FLAGS, make_delegates


def options_of(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> GpuDelegateOptions:
    """Return the options that a delegate would be made with."""
    given: list[GpuDelegateOptions] = []
    monkeypatch.setattr(
        delegation,
        "GpuDelegate",
        lambda on_progress, **fields: given.append(make_options(None, fields)),
    )
    parser = FlagParser("litegpu test", "a test")
    parser.add_flags(DELEGATE_FLAGS)
    make_delegate(parser.parse(argv))
    return given[0]


def options_asked_for(flag: str, monkeypatch: pytest.MonkeyPatch) -> GpuDelegateOptions:
    """Return the same for tools with a choice of delegates, which a flag asks for the GPU's."""
    given: list[GpuDelegateOptions] = []
    monkeypatch.setattr(
        registrar,
        "GpuDelegate",
        lambda on_progress, **fields: given.append(make_options(None, fields)),
    )
    parser = FlagParser("litegpu test", "a test")
    parser.add_flags(REGISTRAR_FLAGS)
    make_delegates(parser.parse([flag]))
    return given[0]


def test_every_option_has_a_flag_in_every_tool() -> None:
    names = [field.name for field in dataclasses.fields(GpuDelegateOptions)]
    assert sorted(flag.name for flag in DELEGATE_FLAGS) == sorted(names)
    for tool in cli.TOOLS:
        flags = [flag.name for flag in importlib.import_module(f"litegpu.tools.{tool}").FLAGS]
        assert len(flags) == len({*flags}), tool
        if tool not in RUN_NO_MODEL_WITH_OPTIONS:
            assert set(names) <= {*flags}, tool


RUN_NO_MODEL_WITH_OPTIONS = {
    *("devices", "doctor", "delegates", "picture_input", "completion"),
    *("generate_validation_labels", "preprocess_coco_minival", "build_delegate"),
}


def test_without_flags_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of([], monkeypatch) == GpuDelegateOptions()


GIVEN: dict[str, tuple[str, Any]] = {
    "backend": ("opencl", "opencl"),
    "device": ("2", "2"),
    "precision": ("fp16", "fp16"),
    "quantized": ("float", "float"),
    "inference_preference": ("sustained_speed", InferencePreference.SUSTAINED_SPEED),
    "inference_priority1": ("MIN_LATENCY", InferencePriority.MIN_LATENCY),
    "inference_priority2": ("2", InferencePriority.MIN_LATENCY),
    "inference_priority3": ("0", InferencePriority.AUTO),
    "is_precision_loss_allowed": ("0", 0),
    "experimental_flags": ("4", ExperimentalFlags.GL_ONLY),
    "max_delegated_partitions": ("3", 3),
    "min_nodes_per_partition": ("0", 0),
    "invoke_timeout_ms": ("250", 250),
    "first_delegate_node_index": ("0", 0),
    "last_delegate_node_index": ("7", 7),
    "cache": ("true", True),
    "unsafe_cache": ("1", True),
    "quick_start": ("true", True),
    "serialization_dir": ("folder", "folder"),
    "model_token": ("name", "name"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_each_flag_reaches_its_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = GIVEN[name]
    assert getattr(options_of([f"--{name}={text}"], monkeypatch), name) == value
    assert getattr(options_asked_for(f"--{name}={text}", monkeypatch), name) == value
    assert set(GIVEN) == {flag.name for flag in DELEGATE_FLAGS}


def test_a_place_to_keep_kernels_turns_keeping_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    flags_of_it = ["--serialization_dir=folder", "--model_token=name"]
    assert options_of(flags_of_it, monkeypatch).cache_folder() == (
        "folder",
        "name",
        False,
        True,
        (),
    )
    assert options_of([*flags_of_it, "--cache=false"], monkeypatch).cache_folder() is None
    for words in ([flags_of_it[0], "--cache"], ["--cache=folder"]):
        assert options_of(words, monkeypatch).cache_folder() == ("folder", "", False, True, ())


def test_unknown_members_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options_of(["--inference_preference=fast"], monkeypatch)
    assert "'fast' is not one of 0 FAST_SINGLE_ANSWER, 1 SUSTAINED_SPEED" in capsys.readouterr().err
