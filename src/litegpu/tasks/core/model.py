"""The models of tasks: inputs are bytes of a picture or numbers; outputs are dequantized."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from litegpu.backends import is_free, is_gpu_available
from litegpu.errors import ModelError
from litegpu.files import metadata
from litegpu.files.flatbuffer import Flatbuffer
from litegpu.tasks.core.base_options import BaseOptions

if TYPE_CHECKING:
    from litegpu.compiled_model import CompiledModel

Floats = NDArray[np.float32]
_GRAPHS = 2
_TENSORS, _INPUTS = 0, 1
_TYPE, _FLOAT32 = 1, 0
"""Numbers in the .tflite schema: the field `type` of a tensor, and the type FLOAT32."""
_SCALE = (127.5, 127.5)
"""Mean and standard deviation that map pixels to floats from -1 to 1."""


class TaskModel:
    """A compiled model of a task, its metadata, and the shapes of its outputs."""

    def __init__(self, content: bytes, options: BaseOptions, **keywords: Any) -> None:
        """Compile the model with keywords of CompiledModel. Raises LitegpuError if that fails."""
        self.content = content
        self.notes = metadata.read_model(content)
        self._model = compiled(content, options, quantize=True, **keywords)
        self.shapes = [tuple(map(int, each.shape)) for each in self._model.signature.outputs]

    def note(self, output: int) -> metadata.TensorNotes:
        """Return the metadata of an output; the result is empty if the model has none.

        Raises:
            ModelError: the metadata describe another number of outputs than the model has.
        """
        notes = self.notes.outputs
        if notes and len(notes) != len(self.shapes):
            raise ModelError(
                f"The metadata describe {len(notes)} outputs, and the model has "
                f"{len(self.shapes)}. Write its metadata again."
            )
        return notes[output] if notes else metadata.TensorNotes()

    def _run(self, *inputs: NDArray[Any]) -> list[Floats]:
        """Run the model on inputs; return the outputs, both in graph order."""
        return list(self._model(*inputs, by_name=True).values())

    def close(self) -> None:
        """Release the model's memory."""
        self._model.close()


class PictureModel(TaskModel):
    """A compiled model whose first input is a picture.

    The host resamples the picture; the device receives the bytes and normalizes them.
    """

    def __init__(
        self, content: bytes, options: BaseOptions, scale: tuple[float, float] = _SCALE
    ) -> None:
        """Compile the model.

        Args:
            content: the bytes of the .tflite file.
            options: the processor that runs the model, and its options.
            scale: mean and standard deviation of pixels, if the metadata have none.

        Raises:
            ModelError: the first input is not a picture.
            LitegpuError: the model cannot be compiled.
        """
        keywords: dict[str, Any] = {"input_format": "rgb8"}
        if takes_floats(content):  # others take the bytes
            inputs = metadata.read_model(content).inputs
            notes = inputs[0] if inputs else metadata.TensorNotes()
            known = notes.mean, notes.std
            keywords["mean"], keywords["std"] = known if notes.mean else scale
        super().__init__(content, options, **keywords)
        height, width, _ = self._model.signature.inputs[0].shape[1:]
        self.size = (int(width), int(height))

    def __call__(self, pixels: NDArray[np.uint8]) -> list[Floats]:
        """Run the model on pixels `[height, width, 3]`; return the outputs in graph order."""
        return self._run(pixels[np.newaxis])


class TensorModel(TaskModel):
    """A compiled model whose inputs are numbers."""

    def __init__(self, content: bytes, options: BaseOptions) -> None:
        """Compile the model. Raises LitegpuError if that fails."""
        super().__init__(content, options)
        self.inputs = [tuple(map(int, each.shape)) for each in self._model.signature.inputs]

    def __call__(self, *inputs: Floats) -> list[Floats]:
        """Run the model; return the outputs. Inputs and outputs are in graph order.

        Inputs are reshaped to the model's shapes.
        """
        pairs = zip(inputs, self.inputs, strict=True)
        return self._run(*(each.reshape(shape) for each, shape in pairs))


def takes_floats(content: bytes) -> bool:
    """Return whether the first input of a model is float32.

    Raises:
        ModelError: the model is damaged.
    """
    data = Flatbuffer(content)
    try:
        graph = data.entry(data.field(data.target(0), _GRAPHS), 0)
        first = data.numbers(graph, _INPUTS)[0]
        return data.scalar(data.entry(data.field(graph, _TENSORS), first), _TYPE, "<B") == _FLOAT32
    except (struct.error, IndexError) as error:
        raise ModelError(
            f"The model is damaged, or has no input ({error}). Convert or download it again."
        ) from error


def compiled(content: bytes, options: BaseOptions, **keywords: Any) -> CompiledModel:
    """Return the model compiled for the processor in the options."""
    from litegpu.compiled_model import CompiledModel
    from litegpu.compiled_model.accelerators import HardwareAccelerator

    delegate, own = options.delegate, options.gpu_options
    if delegate is None and own is None and is_free(None, None) and not is_gpu_available():
        delegate = BaseOptions.Delegate.CPU
    if delegate == BaseOptions.Delegate.CPU:
        return CompiledModel(content, HardwareAccelerator.CPU, **(own or {}), **keywords)
    return CompiledModel(content, **(own or {}), **keywords)
