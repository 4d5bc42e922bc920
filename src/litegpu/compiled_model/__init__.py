"""CompiledModel: a model that runs on buffers, with the same interface as LiteRT's class."""

from __future__ import annotations

import importlib
from typing import Any

from litegpu.compiled_model.accelerators import HardwareAccelerator
from litegpu.compiled_model.batcher import Batcher
from litegpu.compiled_model.future import ModelFuture
from litegpu.compiled_model.model import CompiledModel
from litegpu.tensor_buffer import TensorBuffer

__all__ = ["Batcher", "CompiledModel", "HardwareAccelerator", "ModelFuture", "TensorBuffer"]

_OPTIONS = {
    **dict.fromkeys(("CpuKernelMode", "CpuOptions", "GpuOptions", "Options"), "options"),
    **dict.fromkeys(("IntelOpenVinoOptions", "QualcommOptions"), "options"),
    **dict.fromkeys(("Environment", "EnvironmentOptions"), "environment"),
}
"""Other public names of LiteRT's module, and the modules in which LiteRT defines them."""


def __getattr__(name: str) -> Any:
    if name in _OPTIONS:
        return getattr(importlib.import_module(f"ai_edge_litert.{_OPTIONS[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
