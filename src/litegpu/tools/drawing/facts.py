"""Facts about a model's outputs from its file: ops, sources and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from litegpu.files import metadata
from litegpu.ops.common.flexbuffers import read_map
from litegpu.zoo.cuts import CuttableModel

POST_PROCESS = "TFLite_Detection_PostProcess"
_KEEPS_VALUES = {"DEQUANTIZE", "QUANTIZE", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "CAST", "TRANSPOSE"}
_WHITE = 255.0
_PROBABILITIES = {"LOGISTIC", "SOFTMAX"}


class Grid(NamedTuple):
    """A feature map that the model concatenates to an output."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class ModelFacts:
    """A model's first graph, analyzed from its outputs; tensors are identified by index."""

    model: CuttableModel
    inputs: tuple[int, ...]
    """The tensors that are the model's inputs, in the interpreter's order."""
    outputs: tuple[int, ...]
    """The tensors that are the model's outputs, in the interpreter's order."""
    input_size: tuple[int, int]
    """Width and height of the picture input."""

    @cached_property
    def notes(self) -> metadata.Metadata:
        """The metadata of the model."""
        return metadata.read(self.model.attached(metadata.NAME))

    def note(self, output: int) -> metadata.TensorNotes:
        """Return the metadata of an output, by the output's index."""
        found = self.notes.outputs
        return found[output] if len(found) == len(self.outputs) else metadata.TensorNotes()

    @property
    def label_files(self) -> tuple[str, ...]:
        """The names of attached files that contain labels of outputs."""
        return tuple(name for note in self.notes.outputs for name in note.label_files)

    def scaling(self, position: int) -> tuple[metadata.Numbers, metadata.Numbers] | None:
        """Return mean and standard deviation of the pixels of a float input, if known.

        The values come from the metadata. Otherwise, if the model quantizes the input, the
        quantization range corresponds to pixels from 0 to 255.
        """
        notes = self.notes.inputs
        if position < len(notes) and notes[position].mean:
            return notes[position].mean, notes[position].std
        readers = [
            n for n, read in enumerate(self.model.node_inputs) if self.inputs[position] in read
        ]
        if len(readers) != 1 or self.model.ops[readers[0]] != "QUANTIZE":
            return None
        found = self.model.range_of(self.model.node_outputs[readers[0]][0])
        if found is None or not found[0] < found[1]:
            return None
        step = _WHITE / (found[1] - found[0])
        return (-found[0] * step,), (step,)

    def producer(self, tensor: int) -> int | None:
        """Return the node that computes a tensor; nodes that only move values are skipped."""
        node = self._producers.get(tensor)
        while node is not None and self.model.ops[node] in _KEEPS_VALUES:
            node = self._producers.get(self.model.node_inputs[node][0])
        return node

    def op_of(self, output: int) -> str:
        """Return the op that computes an output's values; empty if no node computes the output."""
        node = self.producer(self.outputs[output])
        return "" if node is None else self.model.ops[node]

    def is_probability(self, output: int) -> bool:
        """Return whether an output has probabilities: LOGISTIC or SOFTMAX computes it.

        For a concatenation, all operands must have probabilities.
        """
        return self._is_probability(self.outputs[output], 0)

    def _is_probability(self, tensor: int, depth: int) -> bool:
        node = self.producer(tensor)
        if node is None or depth > _MAX_CONCATENATIONS:
            return False
        if self.model.ops[node] == "CONCATENATION":
            parts = self.model.node_inputs[node]
            return all(self._is_probability(each, depth + 1) for each in parts)
        return self.model.ops[node] in _PROBABILITIES

    def read_by(self, output: int) -> tuple[int, ...]:
        """Return the shape of the first operand of the node that computes an output."""
        node = self.producer(self.outputs[output])
        return () if node is None else self.model.shape_of(self.model.node_inputs[node][0])

    def place_in_post_process(self, output: int) -> int | None:
        """Return the index of an output in the detector's post-processing op, or None."""
        node = self._producers.get(self.outputs[output])
        if node is None or self.model.ops[node] != POST_PROCESS:
            return None
        return self.model.node_outputs[node].index(self.outputs[output])

    def post_process_options(self) -> Mapping[str, Any]:
        """Return the options of the post-processing op; empty if the options are damaged."""
        for node, op in enumerate(self.model.ops):
            if op == POST_PROCESS:
                try:
                    return read_map(self.model.custom_options(node))
                except ValueError:
                    return {}
        return {}

    def grids(self, output: int) -> list[Grid]:
        """Return the feature maps that are concatenated to an output, in the order of its rows.

        The list is empty if other ops than concatenations and moves are between the maps and the
        output.
        """
        return self._grids(self.outputs[output], 0)

    def _grids(self, tensor: int, depth: int) -> list[Grid]:
        node = self._producers.get(tensor)
        shape = self.model.shape_of(tensor)
        if node is None or depth > _MAX_CONCATENATIONS:
            return []
        op, inputs = self.model.ops[node], self.model.node_inputs[node]
        if len(shape) == 4 and op not in _KEEPS_VALUES | _PROBABILITIES | {"CONCATENATION"}:
            return [Grid(*shape[1:])]
        if op == "CONCATENATION":
            parts = [self._grids(each, depth + 1) for each in inputs]
            return [grid for part in parts for grid in part] if all(parts) else []
        if op in _KEEPS_VALUES | _PROBABILITIES:
            return self._grids(inputs[0], depth + 1)
        return []

    @cached_property
    def _producers(self) -> Mapping[int, int]:
        written = enumerate(self.model.node_outputs)
        return {tensor: node for node, tensors in written for tensor in tensors}


_MAX_CONCATENATIONS = 32
"""Maximum number of nodes between an output and its feature maps."""
