"""Wraps a model's signature in the interface of an interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class SignatureTarget:
    """An interpreter whose inputs, outputs and runs are those of one signature.

    Unlike a SignatureRunner, this class does not resize, allocate and copy at each run. Tensor
    indices are those of the signature's graph. All other attributes are the interpreter's.
    """

    def __init__(self, interpreter: Any, key: str) -> None:
        """Wrap an interpreter of a model that has this signature."""
        self.interpreter = interpreter
        self.key = key
        self.subgraph = int(self._calls.GetSubgraphIndexFromSignature(key))
        """The index of the graph in the model."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.interpreter, name)

    @property
    def _calls(self) -> Any:
        """The runtime's internal object, which cannot run while other references to it exist."""
        return self.interpreter._interpreter

    @property
    def _runner(self) -> Any:
        return self.interpreter.get_signature_runner(self.key)

    def get_input_details(self) -> list[dict[str, Any]]:
        """Return the details of each input, like an interpreter."""
        return list(self._runner.get_input_details().values())

    def get_output_details(self) -> list[dict[str, Any]]:
        """Return the details of each output, like an interpreter."""
        return list(self._runner.get_output_details().values())

    def resize_tensor_input(self, index: int, shape: Any) -> None:
        """Set the shape of an input."""
        self._calls.ResizeInputTensor(index, np.array(shape, np.int32), False, self.subgraph)

    def allocate_tensors(self) -> None:
        """Prepare the graph to run."""
        self._calls.AllocateTensors(self.subgraph)

    def set_tensor(self, index: int, value: NDArray[Any]) -> None:
        """Set the value of an input."""
        self._calls.SetTensor(index, value, self.subgraph)

    def get_tensor(self, index: int) -> NDArray[Any]:
        """Return a copy of a tensor's value."""
        found: NDArray[Any] = self._calls.GetTensor(index, self.subgraph)
        return found

    def invoke(self) -> None:
        """Run the graph."""
        self._calls.Invoke(self.subgraph)
