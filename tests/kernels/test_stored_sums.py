"""How cuda/conv_tile stores its sums: directly from lanes, or in rows through shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cases.base import SMALL, Array, Sheet
from cases.conv_2d import Conv
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda import conv_tile
from litegpu.kernels.cuda.conv_mma import ConvMma
from litegpu.kernels.cuda.conv_narrow import ConvNarrow
from litegpu.kernels.cuda.conv_patch import ConvPatch
from litegpu.kernels.cuda.conv_tile.tile import WideProblem, WideTile, candidates
from litegpu.ops.common.conv_spec import ConvSpec
from op_runner import MODES, Mode, problem_of, run

FLOATS, HALVES = MODES[0], MODES[-1]


@dataclass(frozen=True, kw_only=True)
class Added(Conv):
    """A convolution whose result another tensor of the same size, or of one pixel, is added to."""

    whole: bool = True

    def write(self, sheet: Sheet) -> None:
        """Two inputs, a convolution, their sum and one output."""
        n, height, width, depth = self.image
        beside = (n, height, width) if self.whole else (1, 1, 1)
        weights = sheet.operands((self.filters, *self.kernel, depth), "constant", "constant")
        inputs = [sheet.input(self.image), *weights]
        result = sheet.op("CONV_2D", inputs, self.window())
        more = sheet.input((*beside, self.filters))
        sheet.output(sheet.fused("ADD", [result, more], self.activation))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows pass through shared memory at once, of each kernel that is made."""
    found: list[int] = []
    variables = conv_tile.tile_variables

    def noted(tile: WideTile, *others: Any) -> dict[str, Any]:
        found.append(tile.rows_at_once)
        return variables(tile, *others)

    monkeypatch.setattr(conv_tile, "tile_variables", noted)
    return found


@pytest.fixture
def result_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Conv, Mode], Array]:
    """What conv_tile makes of a case, which is compared with what the CPU makes of it."""
    device = EmulatedDevice(checked=True)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})

    def result_of(case: Conv, mode: Mode) -> Array:
        outcome = run((case,), INFO, mode)[case.name]
        if isinstance(outcome, Exception):
            raise outcome
        assert not problem_of(case, outcome, mode)
        assert all(name.startswith("cuda_conv_tile") for name in outcome.kernels), outcome.kernels
        return outcome.got[0]

    return result_of


def short_tiles(problem: WideProblem, warp_groups: bool) -> Iterator[WideTile]:
    """Yield the tile for short sums, where there is one."""
    for tile in candidates(problem, warp_groups):
        if tile.alone and tile.columns == 64:
            yield tile


IMAGES = {
    "odd sizes": ((3, 9, 7, 64), 37),
    "two blocks of columns, no padding": ((2, 8, 16, 128), 128),
    "a part of the second block": ((2, 11, 13, 57), 70),
}


@needs_emulator
@pytest.mark.parametrize("image, filters", IMAGES.values(), ids=IMAGES)
def test_both_ways_store_the_same(
    image: tuple[int, int, int, int],
    filters: int,
    result_of: Callable[[Conv, Mode], Array],
    rows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conv_tile, "candidates", short_tiles)
    case = Added(image=image, filters=filters, activation="RELU", items=SMALL)
    by_rows = result_of(case, HALVES)
    assert set(rows) == {128}
    rows.clear()
    monkeypatch.setattr(conv_tile, "_adds", lambda node, ctx: False)
    from_registers = result_of(case, HALVES)
    assert set(rows) == {0}
    assert by_rows.tobytes() == from_registers.tobytes()


@needs_emulator
@pytest.mark.parametrize(
    "case",
    [
        Conv(image=(3, 9, 7, 64), filters=37, items=SMALL),
        Added(image=(3, 9, 7, 64), filters=37, whole=False, items=SMALL),
    ],
    ids=["nothing", "one pixel"],
)
def test_what_is_small_is_added_in_registers(
    case: Conv,
    result_of: Callable[[Conv, Mode], Array],
    rows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conv_tile, "candidates", short_tiles)
    result_of(case, HALVES)
    assert set(rows) == {0}


@needs_emulator
@pytest.mark.parametrize("filters", range(1, 10))
def test_few_channels(
    filters: int, result_of: Callable[[Conv, Mode], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of their sectors is padding, which stays zero: other kernels would be faster."""
    monkeypatch.setattr(ConvSpec, "obstacle", lambda *_: "")
    for other in (ConvMma, ConvNarrow, ConvPatch):
        monkeypatch.setattr(other, "plan", lambda *_: Rejected("not asked for"))
    mode = (FLOATS, HALVES)[filters % 2]
    result_of(
        Added(image=(2, 9, 8, 10 - filters), filters=filters, kernel=(3, 2), items=SMALL), mode
    )
