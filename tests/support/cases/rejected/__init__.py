"""Nodes that stay on the CPU, and the reason that is given for each."""

from __future__ import annotations

from cases.rejected import general, indexing, layers, logic, lstm, mediapipe, moves
from cases.rejected.base import Rejected

CASES: tuple[Rejected, ...] = (
    *general.CASES,
    *layers.CASES,
    *lstm.CASES,
    *mediapipe.CASES,
    *moves.CASES,
    *indexing.CASES,
    *logic.CASES,
)

__all__ = ["CASES", "Rejected"]
