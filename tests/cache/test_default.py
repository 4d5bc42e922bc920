"""Partitions are cached by default, in whole programs that do not configure the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from places import SUPPORT, python_path
from small_models import fully_convolutional

PROGRAM = """
import sys
from unittest import mock
from litegpu import GpuDelegate
from litegpu.delegation.partition_kernel import PartitionKernel
from small_models import interpreter, random, run

with mock.patch.object(
    PartitionKernel, "_compile_graph", autospec=True, side_effect=PartitionKernel._compile_graph
) as compile_anew:
    target = interpreter(open(sys.argv[1], "rb").read(), GpuDelegate(backend="opencl"))
    run(target, random(1, 9, 7, 3))
print(compile_anew.call_count)
"""


def compilations(model: Path, cache_home: str, **variables: str) -> int:
    """Run the program in a new process; return how many partitions it compiles."""
    dropped = ("LITEGPU", "XDG_")
    environment = {k: text for k, text in os.environ.items() if not k.startswith(dropped)}
    environment |= {"XDG_CACHE_HOME": cache_home, "POCL_CACHE_DIR": str(model.parent / "pocl")}
    environment |= {"PYTHONPATH": python_path(), **variables}
    command = [sys.executable, "-c", PROGRAM, str(model)]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=SUPPORT, check=False
    )
    assert result.returncode == 0 and "litegpu" not in result.stderr, result.stderr
    return int(result.stdout)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    path.write_bytes(fully_convolutional())
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME is of Linux")
def test_the_second_program_compiles_nothing(model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert compilations(model, str(home), LITEGPU_CACHE="0") == 1
    assert not home.exists()
    assert compilations(model, str(home)) == 1
    (artifact,) = (home / "litegpu" / "partitions").glob("*.artifact")
    assert compilations(model, str(home)) == 0
    assert artifact.is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files")
def test_a_read_only_home_is_no_problem(model: Path) -> None:
    assert compilations(model, "/proc/home") == 1
