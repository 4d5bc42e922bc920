"""A model of a task, with a picture's bytes as input and dequantized outputs."""

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


class PictureModel:
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
        self.content = content
        self.notes = metadata.read_model(content)
        keywords: dict[str, Any] = {"input_format": "rgb8", "quantize": True}
        if takes_floats(content):  # others take the bytes
            notes = self.notes.inputs[0] if self.notes.inputs else metadata.TensorNotes()
            known = notes.mean, notes.std
            keywords["mean"], keywords["std"] = known if notes.mean else scale
        self._model = compiled(content, options, **keywords)
        height, width, _ = self._model.signature.inputs[0].shape[1:]
        self.size = (int(width), int(height))
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

    def __call__(self, pixels: NDArray[np.uint8]) -> list[Floats]:
        """Run the model on pixels `[height, width, 3]`; return the outputs in graph order."""
        found = self._model(pixels[np.newaxis], by_name=True)
        return list(found.values())

    def close(self) -> None:
        """Release the model's memory."""
        self._model.close()


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
