"""`litegpu completion`: completions, as the shells themselves compute them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from litegpu import zoo
from litegpu.backends import BACKENDS
from litegpu.tools import cli
from litegpu.tools.flags import Flag, at_least, one_of
from litegpu.tools.models import KNOWN

ASK_BASH = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=("${@:3}") COMP_CWORD=$(($# - 3))
compopt() { echo "compopt $*"; }
_litegpu
[[ ${#COMPREPLY[@]} == 0 ]] || printf '%s\\n' "${COMPREPLY[@]}"
"""


@cache
def script(shell: str) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "litegpu.tools.cli", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout


def ask(shell: str, line: str, folder: Path) -> list[str]:
    """Return what a shell proposes for a line that ends at the cursor, in a folder."""
    path = folder / f"completions.{shell}"
    path.write_text(script(shell), encoding="utf-8")
    command: Sequence[str]
    if shell == "bash":
        words = [each for each in re.split(r"\s+|([=:])", line) if each]  # as Readline breaks them
        words += [""] * line.endswith((" ", "=", ":"))
        command = ["bash", "--norc", "-c", ASK_BASH, "bash", str(path), line, *words]
    else:
        command = ["fish", "--no-config", "-c", f"source {path}; complete -C '{line}'"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    assert found.stderr == ""
    return [each.split("\t")[0] for each in found.stdout.splitlines()]


def needs(shell: str) -> pytest.MarkDecorator:
    """Mark what asks a shell, which `make setup` installs where it may."""
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(params=[pytest.param(each, marks=needs(each)) for each in ("bash", "fish")])
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_tools(shell: str, tmp_path: Path) -> None:
    assert ask(shell, "litegpu benchmark_m", tmp_path) == ["benchmark_model"]
    assert {*cli.TOOLS} <= {*ask(shell, "litegpu ", tmp_path)}


@pytest.mark.parametrize("tool", ["run", "profile"])
def test_flags(tool: str, shell: str, tmp_path: Path) -> None:
    found = ask(shell, f"litegpu {tool} model.tflite --ba", tmp_path)
    assert {each.rstrip("=") for each in found} >= {"--backend"}
    assert ("--batch" in {each.rstrip("=") for each in found}) == (tool == "profile")
    assert all(each.startswith(("--ba", "compopt")) for each in found)


@pytest.mark.parametrize("tool", ["benchmark", "benchmark_model"])
def test_short_names_have_the_flags_of_the_tool(tool: str, shell: str, tmp_path: Path) -> None:
    found = ask(shell, f"litegpu {tool} --sweep_go", tmp_path)
    assert {each.rstrip("=") for each in found} >= {"--sweep_goal"}


@pytest.mark.parametrize("between", ["=", " "])
def test_values(between: str, shell: str, tmp_path: Path) -> None:
    found = ask(shell, f"litegpu check m.tflite --backend{between}", tmp_path)
    assert {each.removeprefix("--backend=") for each in found} == {*BACKENDS}
    found = ask(shell, f"litegpu check --backend=cuda m.tflite --precision{between}fp1", tmp_path)
    assert [each.removeprefix("--precision=") for each in found] == ["fp16"]


@needs("bash")
def test_values_in_bash_are_what_readline_puts_there(tmp_path: Path) -> None:
    """It breaks words at `=` and `:`, and replaces what stands after the last one."""
    assert ask("bash", "litegpu run --quantized=ex", tmp_path) == ["exact"]
    assert ask("bash", "litegpu run zoo:resnet", tmp_path) == ["resnet50"]
    assert ask("bash", "litegpu benchmark_model --graph=zoo:vit", tmp_path) == ["vit_tiny"]
    assert ask("bash", "litegpu run --task", tmp_path) == ["compopt -o nospace", "--task="]
    assert ask("bash", "litegpu run --batch=", tmp_path) == []


def test_models(shell: str, tmp_path: Path) -> None:
    (tmp_path / "mine.tflite").touch()
    (tmp_path / "mine.txt").touch()
    (tmp_path / "bundle.task").touch()
    (tmp_path / "chat.litertlm").touch()
    found = ask(shell, "litegpu run ", tmp_path)
    assert {*KNOWN, *zoo.names(), "mine.tflite", "bundle.task", "chat.litertlm"} <= {*found}
    assert ask(shell, "litegpu run mi", tmp_path)[0] == "mine.tflite"
    assert "mine.txt" not in found or shell == "fish"  # which lists other files, too, but last


@needs("zsh")
def test_zsh_reads_its_script(tmp_path: Path) -> None:
    path = tmp_path / "_litegpu"
    path.write_text(script("zsh"), encoding="utf-8")
    subprocess.run(["zsh", "-n", str(path)], check=True)


def test_every_flag_is_in_each_script() -> None:
    for shell in ("bash", "zsh", "fish"):
        text = script(shell)
        for name in cli.TOOLS:
            module = __import__(f"litegpu.tools.{name}", fromlist=["FLAGS"])
            for flag in module.FLAGS:
                spelt = f"-l {flag.name} " if shell == "fish" else rf"--{flag.name}(?!\w)"
                assert re.search(spelt, text), (shell, name, flag.name)


def test_values_of_kinds() -> None:
    assert Flag("a", bool, False, "").values == ("true", "false")
    assert Flag("a", one_of(("x", "y")), "x", "").values == ("x", "y")
    assert Flag("a", at_least(1), 1, "").values == ()
    assert Flag("a", str, "", "", known=("x",)).values == ("x",)


def test_other_shells_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bsh"]) == 2
    assert "There is no completion for 'bsh'. Did you mean 'bash'?" in capsys.readouterr().err
