"""Wraps a model's signature in the interface of an interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu import DelegationReport
from litegpu.errors import ModelError, did_you_mean


def check_signature(flag: str, key: str, target: Any) -> None:
    """Raise ModelError if the interpreter's model does not have this signature."""
    keys = list(target.get_signature_list())
    if not keys:
        raise ModelError(f"--{flag}={key}: the model has no signatures. Leave the flag out.")
    if key not in keys:
        raise ModelError(f"--{flag}={key}: there is no such signature.{did_you_mean(key, keys)}")


def of_signature(flag: str, key: str | None, target: Any) -> Any:
    """Return an interpreter, or one of its signatures with allocated tensors.

    Raises:
        ModelError: the signature does not exist.
    """
    if key is None:
        return target
    check_signature(flag, key, target)
    found = SignatureTarget(target, key)
    found.allocate_tensors()
    return found


def graph_report(report: DelegationReport | None, target: Any) -> DelegationReport | None:
    """Return the report of the graph that runs, which may belong to a signature."""
    number = getattr(target, "subgraph", 0)
    if report is None or not number:
        return report
    return report.subgraphs[number - 1] if number <= len(report.subgraphs) else None


class SignatureTarget:
    """An interpreter whose inputs, outputs and runs are those of one signature.

    Unlike a SignatureRunner, this class does not resize, allocate and copy at each run. Tensor
    indices are those of the signature's graph. All other attributes are the interpreter's.
    """

    def __init__(self, interpreter: Any, key: str) -> None:
        """Wrap an interpreter of a model that has this signature."""
        self.interpreter = interpreter
        self._key = key
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
        return self.interpreter.get_signature_runner(self._key)

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
