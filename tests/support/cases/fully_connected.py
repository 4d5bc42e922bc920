"""Cases of FULLY_CONNECTED."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, SMALL, Case, Shape, Sheet


@dataclass(frozen=True, kw_only=True)
class Dense(Case):
    """A fully connected layer with seeded weights; `depth` is the length of a row (0: C)."""

    shape: Shape = (3, 8)
    units: int = 5
    depth: int = 0
    keep_num_dims: bool = False
    activation: str = "NONE"
    bias: str = "constant"
    weights: str = "constant"

    def write(self, sheet: Sheet) -> None:
        """One input, one layer, one output."""
        depth = self.depth or self.shape[-1]
        source = sheet.input(self.shape)
        shape = (self.units, depth)
        weights = sheet.operands(shape, self.weights, self.bias)
        options = {"keep_num_dims": self.keep_num_dims}
        inputs = [source, *weights]
        sheet.output(sheet.fused("FULLY_CONNECTED", inputs, self.activation, options))


CASES: tuple[Case, ...] = (
    *(Dense(shape=(2, c), units=10 - c) for c in range(1, 10)),
    Dense(shape=(1, 128), units=70),
    Dense(shape=(6,), units=5),
    # Rows that the last dimension gives
    Dense(shape=(2, 3, 7)),
    Dense(shape=(2, 3, 7), keep_num_dims=True),
    Dense(shape=(6, 1, 8), units=7),
    Dense(shape=(2, 3, 2, 9)),
    Dense(shape=(2, 3, 2, 9), keep_num_dims=True, units=8),
    Dense(shape=(1, 5), keep_num_dims=True),
    Dense(shape=(2, 1, 3, 2, 2, 9), keep_num_dims=True),
    # Rows across dimensions
    Dense(shape=(2, 3, 4), depth=12),
    Dense(shape=(2, 3, 2, 5), depth=30),
    Dense(shape=(2, 2, 2, 3), depth=6),
    Dense(shape=(1, 7, 7, 3), depth=147),
    Dense(shape=(4, 6), depth=8),
    # Fused activations (the runtime knows no TANH here), bias, weights
    *(Dense(activation=activation) for activation in ("RELU", "RELU_N1_TO_1", "RELU6", "TANH")),
    Dense(bias=""),
    Dense(bias="", activation="RELU6", weights="half"),
    Dense(weights="half", units=9),
    # Every tile, and few outputs of many inputs shared out over a work group
    *(Dense(shape=(rows, 10), units=units, items=SMALL) for rows in (1, 2, 5) for units in (4, 12)),
    Dense(shape=(1, 1024), units=10, items=LARGE),
    Dense(shape=(3, 1021), units=6, items=LARGE, bias=""),
    Dense(shape=(2, 3, 517), units=6, items=LARGE),
    Dense(shape=(6, 1, 512), units=6, items=LARGE),
    Dense(shape=(2, 1, 3, 512), units=6, items=LARGE, keep_num_dims=True, activation="RELU"),
    Dense(shape=(2, 5, 5, 64), units=7, depth=1600, items=LARGE, weights="half"),
    # Computed weights and bias
    *(Dense(shape=(2, c), units=10 - c, weights="computed") for c in range(1, 10)),
    *(
        Dense(shape=(2, 3, 2, 9), keep_num_dims=keep, units=6, weights="computed", bias=bias)
        for keep in (False, True)
        for bias in ("", "computed")
    ),
    Dense(shape=(2, 2, 2, 3), depth=6, weights="computed", activation="RELU6"),
    Dense(bias="computed", activation="RELU"),
    Dense(shape=(3, 1021), units=6, weights="computed", bias="", items=LARGE),
    Dense(shape=(5, 10), units=12, weights="computed", items=SMALL),
)
