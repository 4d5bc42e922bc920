"""Delegates in shared libraries of other vendors: loaded, run, rejected, crashing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

from c_compiler import shared_library
from litegpu.errors import DelegateLibraryError, OptionsError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools import (
    cli,
    registrar,
)
from litegpu.tools.flags import FlagParser
from litegpu.tools.registrar import REGISTRAR_FLAGS, foreign, make_delegates
from litegpu.tools.registrar.foreign import parse_options
from small_models import CPU_ONLY, assert_close, chain, random, reference, run

MODEL, X = chain(["ABS", CPU_ONLY]), random(1, 4, 4, 4) * 9


def parsed(*argv: str) -> argparse.Namespace:
    parser = FlagParser("litegpu test", "a test")
    parser.add_flags(REGISTRAR_FLAGS)
    return parser.parse(argv)


def flags(library: Path, options: str = "") -> argparse.Namespace:
    return parsed(f"--external_delegate_path={library}", f"--external_delegate_options={options}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_library('#include "external_delegate.h"', tmp_path_factory.mktemp("external"))


def test_it_is_loaded_and_runs(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = make_delegates(flags(library, "scale:3"), MODEL)
    assert capsys.readouterr().out == "INFO: EXTERNAL delegate created.\n"
    assert found.gpu is None
    assert found.applied[0].trial_seconds > 0.05  # a Python began and ended
    assert found.describe() == "EXTERNAL, CPU (XNNPACK, threads: the runtime's choice)"
    assert_close(run(found.interpreter(MODEL), X), [3 * np.abs(X)])


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_of_two_takes_what_both_can(library: Path, order: int) -> None:
    gpu = ["--use_gpu=true", "--gpu_precision_loss_allowed=false"]
    other = [f"--external_delegate_path={library}", "--external_delegate_options=scale:3"]
    found = make_delegates(parsed(*(gpu + other if order > 0 else other + gpu)), MODEL)
    assert [each.name for each in found.applied] == ["GPU", "EXTERNAL"][::order]
    (got,) = run(found.interpreter(MODEL), X)
    assert_close([got], [(1 if order > 0 else 3) * np.abs(X)])


def test_a_file_of_this_folder_needs_no_slash(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(library.parent)
    Path("json.py").write_text("raise ImportError('no module for a tool to import')")
    found = make_delegates(flags(Path(library.name)), MODEL)
    assert_close(run(found.interpreter(MODEL), X), reference(MODEL, X))


CRASHES = {
    "create": "The library (crashes|ends the process)",
    "prepare": "The library (crashes|ends the process)",
    "invoke": "The library (crashes|ends the process)",
    "destroy": "The library (crashes|ends the process)",
    "exit": r"ends the process with status 0x5\. .* Its last output: 'the licence is over'\. Use",
    "apply": (
        r"The library is loaded, but this model does not run with its delegate \(The runtime "
        r"rejects .*another"
    ),
}


@pytest.mark.parametrize("where", CRASHES)
def test_what_it_does_to_its_process_is_an_error_here(library: Path, where: str) -> None:
    with pytest.raises(DelegateLibraryError, match=CRASHES[where]) as caught:
        make_delegates(flags(library, f"fail:{where}"), MODEL)
    assert str(caught.value).startswith(f"--external_delegate_path={library}: ")


def test_a_library_that_hangs(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "PATIENCE_SECS", 3.0)
    with pytest.raises(
        DelegateLibraryError, match=r"_path=.*: The library hangs for 3 s\. It was tested"
    ):
        make_delegates(flags(library, "fail:hang"), MODEL)


def test_an_option_that_it_does_not_know(library: Path) -> None:
    said = r"The library returns no delegate \(.*no such option: colour\)\. Check the options"
    with pytest.raises(DelegateLibraryError, match=said):
        make_delegates(flags(library, "scale:2;colour:red"))


def test_a_library_that_works_only_once(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device does that has room for one user, and that user was the trial."""

    class Runtime:
        def load_delegate(self, *_: object) -> None:
            raise ValueError("the device is taken")

    monkeypatch.setattr(runtime, "load", Runtime)
    with pytest.raises(
        DelegateLibraryError, match=r"_path=.*: The library returns no delegate \(the device is"
    ):
        make_delegates(flags(library))


def test_a_library_without_a_delegate(tmp_path: Path) -> None:
    path = shared_library("int nothing;", tmp_path)
    said = (
        r"library has no delegate \(.*tflite_plugin_create_delegate.*\)\. The library of a delegate"
    )
    with pytest.raises(DelegateLibraryError, match=said):
        make_delegates(flags(path))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a constructor of GCC or Clang")
def test_a_library_that_crashes_when_it_is_loaded(tmp_path: Path) -> None:
    source = "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }"
    with pytest.raises(DelegateLibraryError, match=r"The library crashes: Aborted\. It was"):
        make_delegates(flags(shared_library(source, tmp_path)))


def test_files_that_are_no_library(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    for path in (text, tmp_path, tmp_path / "missing.so"):
        with pytest.raises(
            DelegateLibraryError, match=r"The library cannot be loaded \(.*\)\. Give the"
        ):
            make_delegates(flags(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "'a' is not one key, one ':' and one value"),
        ("a:b:c", "'a:b:c' is not one key"),
        (":b", "':b' is not one key"),
        ("a:1;a:2", "'a:2' comes twice. Write key:value, with ';' between two"),
        ("a:1,b:2", "'a:1,b:2' is not one key"),
    ],
)
def test_malformed_options(text: str, said: str) -> None:
    with pytest.raises(OptionsError, match=f"--flag={text}: {said}"):
        parse_options("flag", text)


def test_options_keep_their_order() -> None:
    assert [*parse_options("flag", "b:2;a:;").items()] == [("b", "2"), ("a", "")]


def test_a_platform_with_hexagon(
    library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the platform has one, its library is found and told its flags."""
    library.with_name("libhexagon_delegate.so").write_bytes(library.read_bytes())
    monkeypatch.setattr(registrar, "platform", lambda: "android")
    folder = f"--hexagon_lib_path={library.parent}"
    (found,) = make_delegates(parsed("--use_hexagon=true", folder), MODEL).applied
    assert found.name == "Hexagon" and found.delegate is not None
    assert capsys.readouterr().out == "INFO: Hexagon delegate created.\n"
    make_delegates(parsed("--use_hexagon=true", folder, "--hexagon_profiling=true"), MODEL)
    first, second = capsys.readouterr().out.splitlines()
    assert "no such option: hexagon_profiling" in first
    assert second.startswith("WARN: Could not create Hexagon delegate: platform may not")


def test_a_tool_with_it(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(chain(["ABS"]))
    tool = ["inference_diff", str(model), "--num_runs=1", f"--external_delegate_path={library}"]
    assert cli.main([*tool, "--external_delegate_options=scale:1"]) == 0
    assert "OutputDiff[0]: avg_error=0, " in capsys.readouterr().out
    assert cli.main([*tool, "--external_delegate_options=scale:3"]) == 1, "wrong"
    assert "OutputDiff[0]: avg_error=0, " not in capsys.readouterr().out
    assert cli.main([*tool, "--external_delegate_options=fail:invoke"]) == 1
    captured = capsys.readouterr()
    assert "OutputDiff" not in captured.out
    assert f"error: --external_delegate_path={library}: The library " in captured.err
    assert cli.main([*tool, "--external_delegate_options=scale"]) == 2
