"""scripts/setup installs the missing requirements of a stage, and nothing else."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from litegpu.tools import demo
from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="needs a POSIX shell")


def run_setup(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(folder / "scripts" / "setup"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a Python that logs its arguments, and with all devices."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
echo "$*" >>{tmp_path}/calls
case "$*" in
*"--clear .venv") rm -rf .venv && mkdir -p .venv/bin && cp {python} .venv/bin/python ;;
esac
case "$*" in
"-m venv --clear .venv" | *ensurepip) touch .venv/pip ;;
"-c import pip") test -e .venv/pip ;;
"-c import pip,"*) test -e {tmp_path}/has-pip ;;
*sys.prefix*) echo a Python ;;
esac
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    monkeypatch.setenv("PYTHON", str(python))
    user = tmp_path / "bin" / "id"  # not root: nothing is installed with apt
    user.parent.mkdir()
    user.write_text("#!/bin/sh\necho 1000\n", encoding="utf-8")
    user.chmod(0o755)
    monkeypatch.setenv("PATH", str(user.parent), prepend=os.pathsep)
    return tmp_path


def installed(checkout: Path, *arguments: str, whole: bool = False) -> list[str]:
    """Run setup; return what it let venv and pip do, by the last word or as `whole` lines."""
    calls = checkout / "calls"
    calls.write_text("", encoding="utf-8")
    done = run_setup(checkout, *arguments)
    assert done.returncode == 0, done.stderr
    lines = calls.read_text(encoding="utf-8").splitlines()
    return [line if whole else line.split()[-1] for line in lines if line.startswith("-m ")]


def test_an_unknown_stage_is_an_error() -> None:
    done = run_setup(ROOT, "demos")
    assert done.returncode == 1
    assert "there is no stage 'demos'. Usage: scripts/setup [demo]" in done.stderr


def test_a_later_run_installs_nothing_and_the_tests_add_to_the_demo(checkout: Path) -> None:
    first = installed(checkout, "demo")
    assert first[0] == ".venv"
    assert first[1] in (".[demo]", ".[demo,cuda13]")
    assert installed(checkout, "demo") == []
    assert installed(checkout) == [".[dev]"]
    assert installed(checkout) == []
    assert installed(checkout, "demo") == []


def test_a_demo_has_no_pip_where_that_of_python_installs_for_it(checkout: Path) -> None:
    (checkout / "has-pip").touch()
    venv, pip = installed(checkout, "demo", whole=True)
    assert venv == "-m venv --without-pip --clear .venv"
    assert pip.startswith("-m pip --python .venv/bin/python install ")
    ensure, pip = installed(checkout, whole=True)
    assert ensure == "-m ensurepip"
    assert pip.startswith("-m pip install ") and pip.endswith(" .[dev]")


def test_make_compiles_the_second_model_of_the_demo_meanwhile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"litegpu cache --warm={demo.SEGMENTER} " in makefile


def test_changed_requirements_and_a_damaged_environment_are_installed_again(checkout: Path) -> None:
    installed(checkout, "demo")
    (checkout / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    assert installed(checkout, "demo")[0] == ".venv"
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert installed(checkout, "demo")[0] == ".venv"


def test_apis_without_a_device_are_printed_with_their_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "missing_drivers.py"))
    monkeypatch.setattr("litegpu.backends.status", lambda: [])
    found = script["missing"](["opencl", "webgpu"])
    assert found == {"opencl": "pocl-opencl-icd", "webgpu": "libvulkan1 mesa-vulkan-drivers"}
