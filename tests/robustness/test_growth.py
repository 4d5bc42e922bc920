"""Creation takes steps in proportion to a model's nodes, however these hang together.

The promise (SECURITY.md) is one of seconds; here lines of Python that run are counted, which no
machine changes. `benchmarks/scaling.py` has the seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from unittest import mock

import pytest

import turns
from hostile import growing, steps
from litegpu.codegen import render
from litegpu.engine import lowering
from places import SUPPORT

_NODES = 64
_MAX_GROWTH = 4.3
"""For 4 times the nodes. With the square of their number it would come to 16."""


def test_steps_grow_with_the_nodes() -> None:
    names = [name for name in growing.ALL if turns.ALL or turns.turn(name, 3) == turns.of_commit(3)]
    command = [sys.executable, "-m", "hostile.steps", str(_NODES), ",".join(names)]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=SUPPORT, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert [each["name"] for each in found] == names
    growth = {each["name"]: each["many"] / each["few"] for each in found}
    assert {name: each for name, each in growth.items() if each > _MAX_GROWTH} == {}


@pytest.mark.parametrize("name", ["unpack_pack", "pad_slice", "siblings"])
def test_nodes_that_need_the_same_text_share_it(name: str) -> None:
    """Kernels of nodes that differ in their values alone are rendered once, however many."""
    rendered = []
    for count in (_NODES, 4 * _NODES):
        with mock.patch.object(lowering, "render", mock.Mock(wraps=render)) as rendering:
            steps.load(growing.ALL[name](count))
        rendered.append(rendering.call_count)
    assert rendered[0] == rendered[1] < _NODES // 4


def test_lists_that_many_nodes_read_have_a_budget() -> None:
    size = 1 << 13
    report = steps.load(growing.shared_indices(200, size)).report
    assert report is not None
    assert {node.reason for node in report.rejected} == {
        "The node's constants, which other nodes also read, have too many integers to be expanded."
    }
    assert len(report.rejected) == 200 - 1 - (1 << 20) // size
