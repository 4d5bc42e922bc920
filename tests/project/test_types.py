"""Types that type checkers and editors see: options, results."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import typing

import pytest

import litegpu
from litegpu import GpuDelegateKeywords, GpuDelegateOptions
from places import SOURCE

SNIPPETS = {
    'GpuDelegate(precison="fp16")': r'Unexpected keyword argument "precison".* did you mean "pre',
    'GpuDelegate({"precison": "fp16"})': r'incompatible type|Extra key "precison"',
    'GpuDelegate(precision="fp8")': r'"precision".* has incompatible type "Literal\[.fp8.\]"',
    'GpuDelegate({"precision": 16})': r"incompatible type",
    'GpuDelegate(max_delegated_partitions="2")': r'"max_delegated_partitions".* incompatible type',
    "GpuDelegate(backend=3)": r'"backend" to "GpuDelegate" has incompatible type',
    "GpuDelegate(inference_preference=3)": r'"inference_preference".* has incompatible type',
    'GpuDelegateOptions(precision="fp8")': r'"precision".* has incompatible type',
    "GpuDelegate().report.total_node": r'of "DelegationReport \| None" has no attribute',
    'GpuDelegate(precision="fp16", backend="cl", device=1)': "",
    'GpuDelegate({"precision": "fp16", "device": "4090"}, max_delegated_partitions=4)': "",
    "GpuDelegate(GpuDelegateOptions(inference_preference=InferencePreference.BALANCED))": "",
    "GpuDelegate(backend=list_devices()[0].backend, serialization_dir=Path())": "",
    "reveal_type(GpuDelegate().profile().partitions[0].kernels)": r"tuple\[.*KernelProfile, \.\.\.",
}
"""A line of a program, and what mypy says about it; empty where nothing is wrong."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says about each snippet, by its place."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    folder = tmp_path_factory.mktemp("types")
    names = "GpuDelegate, GpuDelegateOptions, InferencePreference, list_devices"
    lines = [f"from pathlib import Path; from litegpu import {names}", *SNIPPETS]
    (folder / "program.py").write_text("\n".join(lines))
    flags = ("--config-file=", "--follow-imports=silent", "--no-site-packages", "--cache-dir=cache")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *flags, "--ignore-missing-imports", "program.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        check=False,
    )
    found: dict[int, str] = {}
    for line in result.stdout.splitlines():
        if match := re.match(r"program\.py:(\d+): (?:error|note): (.*)", line):
            position = int(match[1]) - 2
            found[position] = f"{found.get(position, '')} {match[2]}".strip()
    assert found, result.stdout + result.stderr
    return found


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_type_checkers_know_the_options(snippet: str, said: dict[int, str]) -> None:
    message = said.get(list(SNIPPETS).index(snippet), "")
    expected = SNIPPETS[snippet]
    assert re.search(expected, message) if expected else not message, message


def test_the_keywords_are_the_fields_of_the_options() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(GpuDelegateOptions)}
    assert list(GpuDelegateKeywords.__annotations__) == list(fields)
    assert not GpuDelegateKeywords.__required_keys__


def test_the_types_that_a_user_gets_are_exported() -> None:
    """From the delegate's public names, whatever their annotations mention of litegpu."""
    waiting: list[object] = [litegpu.GpuDelegate, litegpu.DelegationReport, litegpu.Profile]
    # The delegate imports what it needs of these when it meets a graph.
    names = {name: getattr(litegpu, name) for name in litegpu.__all__}
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if isinstance(kind, type) and kind.__module__.startswith("litegpu") and kind not in seen:
            seen.add(kind)
            waiting += typing.get_type_hints(kind, localns=names).values()
            for name, member in vars(kind).items():
                function = member.fget if isinstance(member, property) else member
                if callable(function) and not name.startswith("_"):
                    waiting += typing.get_type_hints(function, localns=names).values()
    public = {getattr(litegpu, name) for name in litegpu.__all__}
    assert {kind.__name__ for kind in seen - public} <= INNER
    assert {litegpu.Estimate, litegpu.LeftOut, litegpu.KernelProfile, litegpu.Peaks} <= seen


INNER = {
    *("Clocks", "DeviceModel", "Graph", "HostBuffer", "MemoryKind", "PartitionKernel", "Subset"),
    "Unit",
}
"""What the delegate's methods for the bridge take, and the choice of kernels asks of devices."""
