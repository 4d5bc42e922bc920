"""Computes which cache positions the tokens of a run may attend to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Visible = npt.NDArray[np.bool_]


def causal(positions: npt.NDArray[np.int64], columns: int) -> Visible:
    """Return which positions each token sees, `[tokens, columns]`: its own and earlier ones."""
    found: Visible = np.arange(columns)[None, :] <= positions[:, None]
    return found


def local(positions: npt.NDArray[np.int64], ring: int, columns: int, window: int) -> Visible:
    """Return the mask of local attention, `[tokens, columns]`.

    A token sees itself and the `window - 1` tokens before it. Position `p` of a sequence is stored
    at position `p % ring` of the cache, in place of an earlier one. `positions` are consecutive.
    With `columns` equal to `ring`, the cache contains the tokens of the run. Otherwise, it contains
    those before the run, and the last columns are for the tokens of the run.
    """
    rows, slots = positions[:, None], np.arange(ring)[None, :]
    if columns == ring:
        stored = rows - (rows - slots) % ring
        return _visible(stored, rows, window)
    last = positions[0] - 1
    stored = last - (last - slots) % ring
    parts = (_visible(each, rows, window) for each in (stored, positions[None, :]))
    return np.concatenate([*parts], axis=1)


def _visible(stored: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], window: int) -> Visible:
    """Return which stored positions the tokens at the positions `rows` see."""
    found: Visible = (stored >= 0) & (stored <= rows) & (stored > rows - window)
    return found
