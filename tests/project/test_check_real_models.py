"""The script that fails CI if models are available and their tests were skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT, TESTS, python_path

SCRIPT = ROOT / "scripts" / "check_real_models.py"

MARK = '<properties><property name="real_model" value="yes"/></properties>'
RAN = f'<testcase classname="tests.models" name="test_run[fp32]">{MARK}</testcase>'
SKIP = '<skipped message="it is not here"/>'
SKIPPED = f'<testcase classname="tests.models" name="test_run[fp16]">{MARK}{SKIP}</testcase>'
OTHERS = (
    '<testcase classname="tests.project.test_check_real_models" name="test_exit_status"/>'
    f'<testcase classname="tests.tools.test_flags" name="test_defaults">{SKIP}</testcase>'
)
NAMED = "\ntests.models.test_run[fp16]: it is not here\n"


@pytest.mark.parametrize(
    ("cases", "models", "message"),
    [
        (RAN + OTHERS, True, ""),
        (RAN + SKIPPED + OTHERS, True, "1 of 2 real_model tests ran." + NAMED),
        (SKIPPED + OTHERS, True, "0 of 1 real_model tests ran." + NAMED),
        (OTHERS, True, "0 of 0 real_model tests ran.\n"),
        (SKIPPED + OTHERS, False, ""),
    ],
)
def test_exit_status(cases: str, models: bool, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "models"
    folder.mkdir(parents=True)
    if models:
        (folder / "model.tflite").touch()
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "junit.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    result = check(checkout)
    assert result.returncode == bool(message)
    assert result.stdout == ""
    assert result.stderr.endswith(message) and bool(result.stderr) is bool(message)


def check(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "junit.xml"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


MARKED = """
import pytest

@pytest.mark.real_model
def test_that_runs():
    pass

@pytest.mark.real_model
def test_without_its_model():
    pytest.skip("it is not here")

def test_of_something_else():
    pytest.skip("it needs no model")
"""


def test_the_marker_is_in_the_file_that_is_checked(tmp_path: Path) -> None:
    (tmp_path / "shared" / "models").mkdir(parents=True)
    (tmp_path / "shared" / "models" / "model.tflite").touch()
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "test_it.py").write_text(MARKED, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": python_path(TESTS), "PYTEST_ADDOPTS": ""}
    options = ["-p", "no:cacheprovider", "-p", "conftest", "--junitxml=junit.xml", "test_it.py"]
    command = [sys.executable, "-m", "pytest", *options]
    subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=True)
    error = check(checkout).stderr
    assert error.endswith(
        "1 of 2 real_model tests ran.\ntest_it.test_without_its_model: it is not here\n"
    )
