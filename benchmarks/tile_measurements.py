"""What benchmarks of tiles share: times of all tiles of some layers, beside the cost model."""

from __future__ import annotations

import datetime
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import machine
from conv_tiles import PAPER
from litegpu.kernels.cuda.tiles import Tile

_Layer = TypeVar("_Layer")
_Tile = TypeVar("_Tile", bound=Tile)
Row = Mapping[str, Any]
BATCH = 64
"""Pictures of large batches."""
Sizes = tuple[int, int, int, int, int]
"""Of a layer: height and width, inputs, outputs, kernel and stride."""


def by_name(layers: Sequence[Sizes]) -> dict[str, Sizes]:
    """Return layers by the names that result files have.

    >>> by_name([(56, 64, 128, 3, 2)])
    {'56/2 64>128 3x3': (56, 64, 128, 3, 2)}
    """
    names = (
        f"{size}{'/2' if stride == 2 else ''} {inputs}>{outputs} {kernel}x{kernel}"
        for size, inputs, outputs, kernel, stride in layers
    )
    return dict(zip(names, layers, strict=True))


@dataclass(frozen=True)
class TileMeasurements(Generic[_Layer, _Tile]):
    """The layers of a benchmark, and how their tiles are listed, timed and told apart."""

    layers: Mapping[str, _Layer]
    tiles_of: Callable[[_Layer], Sequence[_Tile]]
    microseconds: Callable[[_Layer, str, _Tile], float]
    """A layer's time with a precision and a tile."""
    shape_of: Callable[[_Tile], dict[str, Any]]
    """What tells a tile from others of its problem, as JSON has it."""
    text_of: Callable[[Mapping[str, Any]], str]
    """The same in few letters."""
    paper: Any = PAPER
    """The device whose cost model chooses."""

    def measure(self, out: Path, precision: str, part: str) -> None:
        """Time all tiles of all layers with `part` in their name and write them down."""
        result: dict[str, Any] = {
            "machine": machine.facts(),
            "commit": machine.commit(),
            "precision": precision,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "layers": {},
        }
        for name, layer in self.layers.items():
            if part in name:
                rows = [
                    {"us": self.microseconds(layer, precision, tile), "tile": self.shape_of(tile)}
                    for tile in self.tiles_of(layer)
                ]
                result["layers"][name] = sorted(rows, key=lambda row: row["us"])
                print(f"{name:20} {self._text(result['layers'][name])}", flush=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def measure_beside(
        self, pair: Callable[[_Layer, str], float], out: Path, precision: str, part: str
    ) -> None:
        """Do the same after timing the `pair` of kernels that do what each tile does."""
        pairs = {}
        for name, layer in self.layers.items():
            if part in name:
                pairs[name] = pair(layer, precision)
                print(f"{name:24} two kernels {pairs[name]:.1f} us", flush=True)
        self.measure(out, precision, part)
        result = json.loads(out.read_text(encoding="utf-8")) | {"pairs": pairs}
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def compare(self, path: Path) -> float:
        """Print what the model chooses; return how much longer that takes than the best: a mean."""
        losses = []
        for name, rows in json.loads(path.read_text(encoding="utf-8"))["layers"].items():
            tiles = self.tiles_of(self.layers[name])
            chosen = self.shape_of(min(tiles, key=lambda tile: tile.clocks(self.paper)))
            (time,) = (row["us"] for row in rows if row["tile"] == chosen)
            losses.append(math.log(time / rows[0]["us"]))
            print(f"{name:20} chosen {time:6.2f} us of  {self._text(rows)}")
        mean = math.expm1(statistics.mean(losses))
        print(f"in the mean {mean:.1%} longer than the best of a layer")
        return mean

    def _text(self, rows: Iterable[Row]) -> str:
        return "  ".join(f"{self.text_of(row['tile'])} {row['us']:.1f}" for row in rows)
