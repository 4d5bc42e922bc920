"""What both backends of shaders do with launches that are larger than an axis may be."""

from __future__ import annotations

import numpy as np
import pytest

from backend_suite import FLOATS, GROUP, REVERSE, WHERE, adding, cell, floats, kernel, program, run
from litegpu import backends
from litegpu.backends.base import Dispatch
from litegpu.backends.opengl import OpenGLDevice
from litegpu.backends.shaders import Recent, Shader, shader_of, shaders_of
from litegpu.backends.webgpu import WebGPUDevice
from litegpu.codegen.glsl import fold

FOUND = [info for info in backends.list_devices() if info.backend in ("opengl", "webgpu")]
ShaderDevice = OpenGLDevice | WebGPUDevice


@pytest.fixture(params=FOUND, ids=[info.title.split()[0] for info in FOUND])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ShaderDevice:
    """Return a device that may launch 2 work groups on each axis."""
    opened = backends.BACKENDS[request.param.backend].open(request.param.index)
    assert isinstance(opened, ShaderDevice)
    monkeypatch.setattr(opened, "group_limit", 2)
    return opened


@pytest.mark.parametrize("limit", [1 << 16, 7, 100])
@pytest.mark.parametrize("groups", [(1, 1, 1), (1, 70000, 1), (3, 5, 7), (6, 1, 1)])
def test_folding_keeps_all_groups(groups: tuple[int, int, int], limit: int) -> None:
    x, y, z = fold(groups, limit)
    total = groups[0] * groups[1] * groups[2]
    assert z == 1 and x <= limit
    assert total <= x * y < total + x + y
    assert y <= limit or total > limit * limit


def test_small_launches_are_not_folded() -> None:
    step = Dispatch("name", (), (16, 4, 3), (8, 2, 1))
    assert shader_of(step, 3) == (Shader("name"), (2, 2, 3))
    assert shader_of(step, 2) == (Shader("name", (2, 2, 3)), (2, 6, 1))


def test_every_kernel_is_compiled_and_folded_ones_once_more() -> None:
    whole = adding(3)
    assert shaders_of(whole, 1 << 16) == [Shader("add_one")]
    assert shaders_of(whole, 1) == [Shader("add_one"), Shader("add_one", (4, 1, 1))]


def test_what_was_asked_for_recently_is_kept() -> None:
    recent: Recent[str] = Recent(2)
    made: list[str] = []

    def ask(text: str) -> str:
        return recent.get(text, lambda: made.append(text) or text.upper())  # type: ignore[func-returns-value]

    assert [ask(text) for text in "abacab"] == list("ABACAB")
    assert made == ["a", "b", "c", "b"]
    recent.clear()
    ask("b")
    assert made[-1] == "b" and len(made) == 5


def test_folded_work_items_know_their_place(device: ShaderDevice) -> None:
    text = kernel("where", WHERE, (), vector=False, local_size=(8, 2, 1))
    step = Dispatch("where", (cell(1),), (16, 4, 4), (8, 2, 1))
    recording = device.record(program([text], [step], [], [1]))
    z, y, x = np.meshgrid(range(4), range(4), range(16), indexing="ij")
    expected = x + 100 * y + 10000 * z + 1000000 * (x // 8)
    np.testing.assert_array_equal(run(recording, [])[0][: expected.size], expected.ravel())
    recording.close()


def test_folded_groups_share_memory(device: ShaderDevice) -> None:
    text = kernel("reverse", REVERSE, vector=False, shared=(("float", "scratch", 64),))
    step = Dispatch("reverse", (cell(1), cell(0)), (FLOATS - 64, 1, 1), GROUP)
    recording = device.record(program([text], [step], [0], [1]))
    (got,) = run(recording, [floats()])
    np.testing.assert_array_equal(got[:-64], floats()[:-64].reshape(-1, 64)[:, ::-1].ravel())
    assert np.isnan(got[-64:]).all(), "groups beyond the last do nothing"
    recording.close()
