"""Environment variables, and the output of LITEGPU_DEBUG without configured logging."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from litegpu import config
from places import ROOT, SOURCE, python_path


@pytest.mark.parametrize(
    ("value", "level"),
    [(None, 0), ("", 0), (" ", 0), ("0", 0), ("1", 1), ("2", 2), ("yes", 1), ("²", 1)],
)
def test_debug_level(monkeypatch: pytest.MonkeyPatch, value: str | None, level: int) -> None:
    if value is None:
        monkeypatch.delenv("LITEGPU_DEBUG", raising=False)
    else:
        monkeypatch.setenv("LITEGPU_DEBUG", value)
    assert config.debug_level() == level


def test_undeclared_variables_are_refused() -> None:
    with pytest.raises(KeyError, match="undeclared environment variable LITEGPU_MOOD; declare it"):
        config.text("LITEGPU_MOOD")


def test_no_other_module_reads_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for path in (SOURCE / "litegpu").rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text(encoding="utf-8"))
    ]
    # The startup module runs in processes that may have no litegpu.
    startup = Path("src", "litegpu", "acceleration", "startup", "sitecustomize.py")
    assert {*readers} == {str(Path("src", "litegpu", "config.py")), str(startup)}


PROGRAM = """
import logging, sys
{setup}
from litegpu import GpuDelegate
from small_models import CPU_ONLY, chain, interpreter
interpreter(chain(["ABS", "NEG", CPU_ONLY]), GpuDelegate(backend="opencl", device=0))
"""


def stderr_of(level: str, setup: str = "") -> str:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup)],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "LITEGPU_DEBUG": level, "PYTHONPATH": python_path()},
    )
    return result.stderr


def test_silence_but_for_warnings_by_default() -> None:
    text = stderr_of("")
    assert "op code #18 cannot be handled by this delegate" in text
    for word in ("pass ", "device opencl:0", "__kernel", "partition"):
        assert word not in text


def test_level_1_shows_decisions() -> None:
    text = stderr_of("1")
    assert "litegpu: device opencl:0 " in text
    assert "litegpu: pass fuse_elementwise: " in text
    assert "2 operations will run on the GPU" in text
    assert "partition  nodes  kernels" in text
    assert "__kernel" not in text
    assert text.count("cannot be handled by this delegate") == 1


def test_level_2_shows_kernel_sources_too() -> None:
    text = stderr_of("2")
    assert "litegpu: device opencl:0 " in text
    assert re.search(r"__kernel.*\n.*void \w+\(__global", text)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_program_with_logging_of_its_own_sees_everything_once(moment: str) -> None:
    basic = "logging.basicConfig(format='mine: %(message)s')"
    setup = {"before": basic, "after": f"import litegpu; litegpu.GpuDelegate(); {basic}"}[moment]
    text = stderr_of("1", setup)
    assert "mine: device opencl:0 " in text
    assert text.count("cannot be handled by this delegate") == 1
    assert "litegpu: WARNING" not in text


def test_a_placeholder_stays_until_the_last_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTHERS", raising=False)
    first, second = config.placeholder("OTHERS", "1"), config.placeholder("OTHERS", "1")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ["OTHERS"] == "1"
    second.__exit__(None, None, None)
    assert "OTHERS" not in os.environ


def test_a_placeholder_keeps_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHERS", "theirs")
    with config.placeholder("OTHERS", "1"):
        assert os.environ["OTHERS"] == "theirs"
    assert os.environ["OTHERS"] == "theirs"
