"""Parsing of wgpu's C types when WebGPU starts, in new processes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from every_backend import needs_device
from litegpu.backends.webgpu.type_names import NAMES, parse_types

KNOWN = pytest.mark.skipif(
    importlib.util.find_spec("wgpu") is None or version("wgpu").startswith(("0.2", "0.30", "0.31")),
    reason="the names are those of wgpu-py 0.32 and newer",
)
START = """
from cffi.cparser import Parser
parse, parsed = Parser.parse_type, []
Parser.parse_type = lambda self, text: parsed.append(text) or parse(self, text)
import numpy as np
from litegpu import GpuDelegate
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter
writer = ModelWriter()
x = writer.input((1, 4, 4, 8))
writer.output(writer.op("ABS", [x], [(1, 4, 4, 8)]))
delegate = GpuDelegate(backend="webgpu", cache=False, min_nodes_per_partition=1)
interpreter(writer.build(), delegate).invoke()
assert delegate.report.partitions
print(*(text.split("{")[0] for text in parsed), sep="\\n")
"""


@KNOWN
@needs_device("webgpu")
def test_a_start_parses_the_names_of_types_together() -> None:
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    parsed = done.stdout.splitlines()
    assert "struct " in parsed
    assert len(parsed) <= 4, parsed  # callbacks that wgpu-py makes while it is imported


class _Header:
    """In the place of cffi's: knows no names."""

    def __init__(self) -> None:
        self._parsed_types: dict[str, object] = {}

    def typeof(self, text: str) -> object:
        raise TypeError(text)


def test_an_unknown_name_leaves_the_types_as_they_are() -> None:
    header = _Header()
    parse_types(header)
    assert header._parsed_types == {}
    parse_types(SimpleNamespace())


@KNOWN
def test_types_are_those_that_cffi_finds_itself() -> None:
    ffi = pytest.importorskip("wgpu.backends.wgpu_native").ffi
    ffi._parsed_types.clear()
    parse_types(ffi)
    assert set(NAMES) <= set(ffi._parsed_types)
    for name in NAMES:
        together = ffi._parsed_types.pop(name)
        with ffi._lock:
            assert ffi._typeof_locked(name) == together, name
