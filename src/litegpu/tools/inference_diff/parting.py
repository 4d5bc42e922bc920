"""Runs parts of a graph to find the first nodes at which a delegate differs from the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.runtime_abi.interpreter import invoke
from litegpu.tools.inference_diff.tolerance import distances, magnitude
from litegpu.zoo.cuts import CuttableModel, Values

OpenModel = Callable[[bytes], Any]
"""A function that returns an interpreter of a model with allocated tensors."""


@dataclass(frozen=True)
class Segment:
    """Nodes that run on the same processor, and a function that opens models of such nodes."""

    nodes: tuple[int, ...]
    place: str
    open: OpenModel


@dataclass(frozen=True)
class Parting:
    """The shortest sequence of nodes whose results differ from the CPU's for the CPU's inputs.

    The difference first appears at the last of `nodes`. `exposed` means that the difference also
    appears if every node's result is a graph output, which prevents fusion. `results` has the
    values that these nodes computed from the CPU's values, by tensor.
    """

    nodes: tuple[int, ...]
    segment: Segment
    exposed: bool
    results: dict[int, NDArray[Any]]


def relative_error(test: NDArray[Any], reference: NDArray[Any]) -> float:
    """Return the largest absolute difference divided by the reference's largest magnitude."""
    return float(distances(test, reference).max(initial=0.0)) / magnitude(reference)


class Search:
    """Extracts parts of a model, runs the parts on the CPU's values, and compares the results."""

    def __init__(self, model: CuttableModel, values: Values, tolerance: float) -> None:
        """Store the CPU's values of all readable tensors."""
        self.model = model
        self.values = values
        self.tolerance = tolerance

    def first(self, segments: Sequence[Segment]) -> Parting | None:
        """Return the first difference from the CPU, searching the segments in order."""
        for segment in segments:
            found = self._within(segment)
            if found is not None:
                return found
        return None

    def node_errors(self, segment: Segment) -> dict[int, float]:
        """Return the error of each node of a segment; nodes with unreadable results are omitted."""
        errors = self._errors(segment, segment.nodes, exposed=True)
        found = {}
        for node in segment.nodes:
            own = [errors[t] for t in self.model.node_outputs[node] if t in errors]
            if own:
                found[node] = max(own)
        return found

    def _within(self, segment: Segment) -> Parting | None:
        nodes = segment.nodes
        errors = self._errors(segment, nodes, exposed=True)
        parted = [index for index, node in enumerate(nodes) if self._is_beyond(errors, node)]
        exposed = bool(parted)
        if exposed:
            end = parted[0]
        elif self._parts(segment, nodes, exposed):
            ends = range(len(nodes))
            end = _first(ends, lambda index: self._parts(segment, nodes[: index + 1], exposed))
        else:
            return None
        # In most cases a single node is the cause, and a single part shows it.
        start = end
        if end and not self._parts(segment, nodes[end : end + 1], exposed):
            starts = range(end - 1, -1, -1)
            start = _first(starts, lambda at: self._parts(segment, nodes[at : end + 1], exposed))
        found = nodes[start : end + 1]
        return Parting(found, segment, exposed, self._run(segment, found, exposed))

    def _is_beyond(self, errors: dict[int, float], node: int) -> bool:
        written = self.model.node_outputs[node]
        return any(errors.get(tensor, 0.0) > self.tolerance for tensor in written)

    def _parts(self, segment: Segment, nodes: Sequence[int], exposed: bool) -> bool:
        errors = self._errors(segment, nodes, exposed)
        return any(error > self.tolerance for error in errors.values())

    def _errors(self, segment: Segment, nodes: Sequence[int], exposed: bool) -> dict[int, float]:
        results = self._run(segment, nodes, exposed)
        return {
            tensor: relative_error(result, self.values[tensor])
            for tensor, result in results.items()
        }

    def _run(
        self, segment: Segment, nodes: Sequence[int], exposed: bool
    ) -> dict[int, NDArray[Any]]:
        """Return the results of nodes for the CPU's values; empty for unreadable values."""
        model, values = self.model, self.values
        written_by = model.written_by(nodes) if exposed else model.read_by_others(nodes)
        outputs = [tensor for tensor in written_by if tensor in values]
        if not outputs or any(tensor not in values for tensor in model.read_from_outside(nodes)):
            return {}
        cut = model.cut(nodes, outputs, values)
        target = segment.open(cut.content)
        for tensor in cut.inputs:
            target.set_tensor(tensor, values[tensor])
        invoke(target)
        return {tensor: np.asarray(target.get_tensor(tensor)) for tensor in cut.outputs}


def _first(positions: Sequence[int], holds: Callable[[int], bool]) -> int:
    """Return the first position at which a monotonic condition holds, by bisection."""
    low, high = 0, len(positions) - 1
    while low < high:
        middle = (low + high) // 2
        if holds(positions[middle]):
            high = middle
        else:
            low = middle + 1
    return positions[low]
