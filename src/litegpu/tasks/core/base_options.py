"""The options of a task's model."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

from litegpu.options import GpuDelegateKeywords


@dataclass
class BaseOptions:
    """The model of a task, and the processor that runs the model.

    Args:
        model_asset_path: a .tflite file, a bundle (.task), or `zoo:NAME`.
        model_asset_buffer: the bytes of a file, if there is no path.
        delegate: Delegate.GPU, Delegate.CPU, or None for a GPU if there is one. Software devices
            are used only with Delegate.GPU, because the runtime's CPU kernels are faster.
        gpu_options: a litegpu extension: keyword arguments of GpuDelegate, for example
            `{"precision": "fp16"}`.
    """

    class Delegate(enum.IntEnum):
        """The processor that runs the model."""

        CPU = 0
        GPU = 1

    model_asset_path: str | os.PathLike[str] | None = None
    model_asset_buffer: bytes | None = None
    delegate: Delegate | None = None
    gpu_options: GpuDelegateKeywords | None = None
