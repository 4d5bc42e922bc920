"""The signatures of a model: their inputs and outputs, and how the interpreter runs them."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import CompiledModelError, LitegpuError

PLACEHOLDER = "<placeholder signature>"
"""LiteRT's name for the only signature of a model that states none."""
Array = npt.NDArray[Any]
Names = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output: its name in the signature and its tensor in the interpreter."""

    key: str
    name: str
    index: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stated: tuple[int, ...]
    """The shape in the file; -1 for an unknown size."""
    quantization: tuple[float, int] = (0.0, 0)
    """Scale and zero point; the scale is 0 if the tensor has several or none."""

    @property
    def nbytes(self) -> int:
        """The current size in bytes."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def states(self, shape: Sequence[int]) -> bool:
        """Return whether the file permits a shape: only dimensions of size -1 may differ."""
        return len(shape) == len(self.stated) and all(
            stated in (-1, size) for stated, size in zip(self.stated, shape, strict=True)
        )

    def __str__(self) -> str:
        """Return name, type and shape: ``input float32 [1, 224, 224, 3]``."""
        return f"{self.key} {self.dtype.name} {[*self.shape]}"

    def to_dict(self) -> dict[str, Any]:
        """Return the details in LiteRT's format."""
        return {
            "name": self.name,
            "index": self.index,
            "dtype": self.dtype.name,
            "shape": list(self.shape),
        }


class Signature(ABC):
    """One way to call a model; `inputs` and `outputs` are in the order of the graph.

    The tensors have their current shapes. An output whose shape depends on data has the shape of
    the last run.
    """

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    graph: int | None = 0
    """The index of the signature's graph; None if the runtime does not expose it."""

    def __init__(self, key: str, interpreter: Any) -> None:
        """Represent the signature called `key`."""
        self.key = key
        self._interpreter = interpreter
        self.refresh()

    @abstractmethod
    def refresh(self) -> None:
        """Read the tensors from the runtime."""

    @abstractmethod
    def resize(self, number: int, shape: Sequence[int], strict: bool) -> None:
        """Change the shape of an input. Raises CompiledModelError if that is impossible."""

    @abstractmethod
    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once; return an array for each output."""

    def learn(self, results: Sequence[Array]) -> None:
        """Record the shapes that outputs had in a run."""
        if any(each.shape != t.shape for each, t in zip(results, self.outputs, strict=True)):
            self.outputs = [
                dataclasses.replace(tensor, shape=each.shape)
                for tensor, each in zip(self.outputs, results, strict=True)
            ]


class MainSignature(Signature):
    """The signature of the interpreter's main graph."""

    def __init__(self, key: str, interpreter: Any, inputs: Names, outputs: Names) -> None:
        """Use the signature's names, by tensor; a tensor without one uses its name in the graph."""
        self._names = inputs, outputs
        super().__init__(key, interpreter)

    def refresh(self) -> None:
        """Read the tensors from the runtime. See Signature.refresh."""
        self.inputs = _named(self._interpreter.get_input_details(), self._names[0])
        self.outputs = _named(self._interpreter.get_output_details(), self._names[1])

    def resize(self, number: int, shape: Sequence[int], strict: bool) -> None:
        """Change the shape of an input. See Signature.resize."""
        try:
            self._interpreter.resize_tensor_input(self.inputs[number].index, shape, strict=strict)
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            self._undo(number)
            raise _rejected(self.inputs[number], _sentence(error), shape) from error
        self.refresh()

    def _undo(self, number: int) -> None:
        """Restore the previous shapes; other inputs may have to be resized, too."""
        tensor = self.inputs[number]
        with contextlib.suppress(RuntimeError, ValueError):
            self._interpreter.resize_tensor_input(tensor.index, tensor.shape)
            self._interpreter.allocate_tensors()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once. See Signature.run."""
        try:
            for tensor, array in zip(self.inputs, inputs, strict=True):
                self._interpreter.set_tensor(tensor.index, array)
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise _failed(self.key, error) from error
        return [self._interpreter.get_tensor(tensor.index) for tensor in self.outputs]


class OtherSignature(Signature):
    """A signature of a model with several signatures; the runtime's signature runner runs it."""

    def __init__(self, key: str, interpreter: Any) -> None:
        """Represent the signature called `key`."""
        self._runner = interpreter.get_signature_runner(key)
        self.graph = getattr(self._runner, "_subgraph_index", None)
        super().__init__(key, interpreter)

    def refresh(self) -> None:
        """Read the tensors from the runtime. See Signature.refresh."""
        self.inputs = _ordered(self._runner.get_input_details())
        self.outputs = _ordered(self._runner.get_output_details())

    def resize(self, number: int, shape: Sequence[int], strict: bool) -> None:
        """Change the shape of an input. See Signature.resize."""
        tensor = self.inputs[number]
        if strict and not tensor.states(shape):
            raise _rejected(tensor, f"The model file states the shape {[*tensor.stated]}.", shape)
        shapes = [shape if each is tensor else each.shape for each in self.inputs]
        try:
            # The runner takes the shapes from the arrays that it runs on.
            self.run([np.zeros(n, t.dtype) for n, t in zip(shapes, self.inputs, strict=True)])
        except (ValueError, MemoryError) as error:
            raise _rejected(tensor, _sentence(error), shape) from error
        self.refresh()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once. See Signature.run."""
        keys = [tensor.key for tensor in self.inputs]
        try:
            found = self._runner(**dict(zip(keys, inputs, strict=True)))
        except (RuntimeError, ValueError) as error:
            raise _failed(self.key, error) from error
        return [found[tensor.key] for tensor in self.outputs]


def signatures_of(interpreter: Any) -> list[Signature]:
    """Return all signatures of a model, in the order of the file."""
    listed = interpreter.get_signature_list()
    if not listed:
        return [MainSignature(PLACEHOLDER, interpreter, {}, {})]
    if len(listed) > 1:
        return [OtherSignature(key, interpreter) for key in listed]
    (key,) = listed
    runner = interpreter.get_signature_runner(key)
    sides = runner.get_input_details(), runner.get_output_details()
    graph = interpreter.get_input_details(), interpreter.get_output_details()
    names = [{each["index"]: name for name, each in side.items()} for side in sides]
    if any(
        {each["index"] for each in main} != set(own) for main, own in zip(graph, names, strict=True)
    ):
        return [OtherSignature(key, interpreter)]
    return [MainSignature(key, interpreter, *names)]


def _named(details: Sequence[Mapping[str, Any]], names: Names) -> list[Tensor]:
    return [_tensor(names.get(each["index"], each["name"]), each) for each in details]


def _ordered(details: Mapping[str, Mapping[str, Any]]) -> list[Tensor]:
    """Return tensors sorted by index, because a signature runner has no order."""
    found = [_tensor(key, each) for key, each in details.items()]
    return sorted(found, key=lambda tensor: tensor.index)


def _tensor(key: str, detail: Mapping[str, Any]) -> Tensor:
    shape, stated = (tuple(map(int, detail[name])) for name in ("shape", "shape_signature"))
    scale, zero_point = detail["quantization"]
    return Tensor(
        key,
        detail["name"],
        int(detail["index"]),
        np.dtype(detail["dtype"]),
        shape,
        stated if len(stated) == len(shape) else shape,
        (float(scale), int(zero_point)),
    )


def _rejected(tensor: Tensor, why: str, shape: Sequence[int]) -> CompiledModelError:
    """Return the error for a shape that an input cannot have; CompiledModel adds a remedy."""
    return CompiledModelError(f"The input '{tensor.key}' cannot have the shape {[*shape]}: {why}")


def _failed(key: str, error: Exception) -> LitegpuError:
    if isinstance(error, LitegpuError):
        return error
    return CompiledModelError(
        f"Failed to invoke the compiled model, signature '{key}': {_sentence(error)} Give inputs "
        "that the model's operations support."
    )


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") + "."
