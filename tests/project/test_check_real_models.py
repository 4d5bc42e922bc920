"""The script that fails CI when models are at hand and every test of them was skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

SCRIPT = ROOT / "scripts" / "check_real_models.py"

MODULE = 'classname="tests.models.test_real_models"'
RAN = f'<testcase {MODULE} name="test_run[fp32]"/>'
SKIPPED = f'<testcase {MODULE} name="test_run[fp16]"><skipped/></testcase>'
OTHER = '<testcase classname="tests.tools.test_flags" name="test_defaults"/>'


@pytest.mark.parametrize(
    ("cases", "models", "status"),
    [
        (RAN + SKIPPED + OTHER, True, 0),
        (SKIPPED + OTHER, True, 1),
        (OTHER, True, 1),
        (SKIPPED + OTHER, False, 0),
    ],
)
def test_exit_status(cases: str, models: bool, status: int, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "models"
    folder.mkdir(parents=True)
    if models:
        (folder / "model.tflite").touch()
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "junit.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    command = [sys.executable, str(SCRIPT), "junit.xml"]
    result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert result.stdout == ""
    assert ("real_model tests ran" in result.stderr) is (status == 1)
