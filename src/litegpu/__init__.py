"""litegpu: the GPU delegate for TensorFlow Lite (LiteRT) models in Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from litegpu.version import __version__

if TYPE_CHECKING:
    from litegpu.backends import list_devices
    from litegpu.backends.base import DeviceInfo
    from litegpu.backends.opengl import share_opengl_context
    from litegpu.backends.opengl_sharing import GLBuffer
    from litegpu.cache.token import model_token
    from litegpu.compiled_model import Batcher, CompiledModel, ModelFuture, TensorBuffer
    from litegpu.costs import Estimate, Split
    from litegpu.delegate import GpuDelegate
    from litegpu.engine.peaks import Peaks
    from litegpu.errors import (
        BindingError,
        CompilationError,
        CompiledModelError,
        DeviceLostError,
        DeviceMemoryError,
        ExecutionError,
        ForkedProcessError,
        InterpreterError,
        InvokeTimeoutError,
        LitegpuError,
        MissingDependencyError,
        ModelError,
        OptionsError,
        RunTimeoutError,
        UnsupportedDeviceError,
    )
    from litegpu.options import (
        ExperimentalFlags,
        GpuDelegateKeywords,
        GpuDelegateOptions,
        InferencePreference,
        InferencePriority,
    )
    from litegpu.profiling import KernelProfile, OpTotal, PartitionProfile, Profile
    from litegpu.progress import Progress
    from litegpu.report import (
        Advice,
        DelegationReport,
        LeftOut,
        Partition,
        QuantizedSupport,
        RejectedNode,
    )

__all__ = [
    "Advice",
    "Batcher",
    "BindingError",
    "CompilationError",
    "CompiledModel",
    "CompiledModelError",
    "DelegationReport",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceMemoryError",
    "Estimate",
    "ExecutionError",
    "ExperimentalFlags",
    "ForkedProcessError",
    "GLBuffer",
    "GpuDelegate",
    "GpuDelegateKeywords",
    "GpuDelegateOptions",
    "InferencePreference",
    "InferencePriority",
    "InterpreterError",
    "InvokeTimeoutError",
    "KernelProfile",
    "LeftOut",
    "LitegpuError",
    "MissingDependencyError",
    "ModelError",
    "ModelFuture",
    "OpTotal",
    "OptionsError",
    "Partition",
    "PartitionProfile",
    "Peaks",
    "Profile",
    "Progress",
    "QuantizedSupport",
    "RejectedNode",
    "RunTimeoutError",
    "Split",
    "TensorBuffer",
    "UnsupportedDeviceError",
    "__version__",
    "list_devices",
    "model_token",
    "share_opengl_context",
]

_HOMES = (
    *("litegpu.errors", "litegpu.options", "litegpu.costs", "litegpu.report"),
    *("litegpu.engine.peaks", "litegpu.backends", "litegpu.backends.base"),
    *("litegpu.backends.opengl", "litegpu.backends.opengl_sharing"),
    *("litegpu.cache.token", "litegpu.progress"),
    *("litegpu.profiling", "litegpu.delegate", "litegpu.compiled_model"),
)
"""Where the names above come from: imported when one is first used, so that `--help` is fast."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in map(importlib.import_module, _HOMES):
            if hasattr(home, name):
                value = globals()[name] = getattr(home, name)
                return value
    if f"{__name__}.{name}" in _HOMES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
