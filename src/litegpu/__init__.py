"""litegpu: the GPU delegate for TensorFlow Lite (LiteRT) models in Python."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from litegpu.version import __version__

if TYPE_CHECKING:
    from litegpu.acceleration import AcceleratedModel, Acceleration, accelerate
    from litegpu.backends import list_devices
    from litegpu.backends.base import DeviceInfo
    from litegpu.backends.opengl.device import share_opengl_context
    from litegpu.backends.opengl.sharing import GLBuffer
    from litegpu.cache.token import model_token
    from litegpu.compiled_model import Batcher, CompiledModel, ModelFuture, TensorBuffer
    from litegpu.custom_op import CustomNode, CustomOp, CustomTensor, Launch, register_op
    from litegpu.delegation.cost_model import Estimate, Split
    from litegpu.delegation.delegate import GpuDelegate
    from litegpu.delegation.profile import KernelProfile, OpTotal, PartitionProfile, Profile
    from litegpu.delegation.report import (
        Advice,
        Composite,
        DelegationReport,
        LeftOut,
        Partition,
        QuantizedSupport,
        RejectedNode,
    )
    from litegpu.engine.peaks import Peaks
    from litegpu.errors import (
        BindingError,
        CacheFullError,
        CompilationError,
        CompiledModelError,
        DeviceLostError,
        DeviceMemoryError,
        ExecutionError,
        FileError,
        ForkedProcessError,
        InterpreterError,
        InvokeTimeoutError,
        LanguageModelError,
        LitegpuError,
        MissingDependencyError,
        ModelError,
        OperationError,
        OptionsError,
        RunTimeoutError,
        TaskError,
        UnsupportedDeviceError,
    )
    from litegpu.language_model import Completion, LanguageModel, Session, TextStream
    from litegpu.options import (
        ExperimentalFlags,
        GpuDelegateKeywords,
        GpuDelegateOptions,
        InferencePreference,
        InferencePriority,
    )
    from litegpu.progress import Progress
    from litegpu.tasks import Image, ImageFormat
    from litegpu.tools.check.model_check import ModelCheck, check

__all__ = [
    "AcceleratedModel",
    "Acceleration",
    "Advice",
    "Batcher",
    "BindingError",
    "CacheFullError",
    "CompilationError",
    "CompiledModel",
    "CompiledModelError",
    "Completion",
    "Composite",
    "CustomNode",
    "CustomOp",
    "CustomTensor",
    "DelegationReport",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceMemoryError",
    "Estimate",
    "ExecutionError",
    "ExperimentalFlags",
    "FileError",
    "ForkedProcessError",
    "GLBuffer",
    "GpuDelegate",
    "GpuDelegateKeywords",
    "GpuDelegateOptions",
    "Image",
    "ImageFormat",
    "InferencePreference",
    "InferencePriority",
    "InterpreterError",
    "InvokeTimeoutError",
    "KernelProfile",
    "LanguageModel",
    "LanguageModelError",
    "Launch",
    "LeftOut",
    "LitegpuError",
    "MissingDependencyError",
    "ModelCheck",
    "ModelError",
    "ModelFuture",
    "OpTotal",
    "OperationError",
    "OptionsError",
    "Partition",
    "PartitionProfile",
    "Peaks",
    "Profile",
    "Progress",
    "QuantizedSupport",
    "RejectedNode",
    "RunTimeoutError",
    "Session",
    "Split",
    "TaskError",
    "TensorBuffer",
    "TextStream",
    "UnsupportedDeviceError",
    "__version__",
    "accelerate",
    "check",
    "list_devices",
    "model_token",
    "register_op",
    "share_opengl_context",
]

_HOMES: Mapping[str, str] = {
    "AcceleratedModel": "litegpu.acceleration",
    "Acceleration": "litegpu.acceleration",
    "Advice": "litegpu.delegation.report",
    "Batcher": "litegpu.compiled_model",
    "BindingError": "litegpu.errors",
    "CacheFullError": "litegpu.errors",
    "CompilationError": "litegpu.errors",
    "CompiledModel": "litegpu.compiled_model",
    "CompiledModelError": "litegpu.errors",
    "Completion": "litegpu.language_model",
    "Composite": "litegpu.delegation.report",
    "CustomNode": "litegpu.custom_op",
    "CustomOp": "litegpu.custom_op",
    "CustomTensor": "litegpu.custom_op",
    "DelegationReport": "litegpu.delegation.report",
    "DeviceInfo": "litegpu.backends.base",
    "DeviceLostError": "litegpu.errors",
    "DeviceMemoryError": "litegpu.errors",
    "Estimate": "litegpu.delegation.cost_model",
    "ExecutionError": "litegpu.errors",
    "ExperimentalFlags": "litegpu.options",
    "FileError": "litegpu.errors",
    "ForkedProcessError": "litegpu.errors",
    "GLBuffer": "litegpu.backends.opengl.sharing",
    "GpuDelegate": "litegpu.delegation.delegate",
    "GpuDelegateKeywords": "litegpu.options",
    "GpuDelegateOptions": "litegpu.options",
    "Image": "litegpu.tasks",
    "ImageFormat": "litegpu.tasks",
    "InferencePreference": "litegpu.options",
    "InferencePriority": "litegpu.options",
    "InterpreterError": "litegpu.errors",
    "InvokeTimeoutError": "litegpu.errors",
    "KernelProfile": "litegpu.delegation.profile",
    "LanguageModel": "litegpu.language_model",
    "LanguageModelError": "litegpu.errors",
    "Launch": "litegpu.custom_op",
    "LeftOut": "litegpu.delegation.report",
    "LitegpuError": "litegpu.errors",
    "MissingDependencyError": "litegpu.errors",
    "ModelCheck": "litegpu.tools.check.model_check",
    "ModelError": "litegpu.errors",
    "ModelFuture": "litegpu.compiled_model",
    "OpTotal": "litegpu.delegation.profile",
    "OperationError": "litegpu.errors",
    "OptionsError": "litegpu.errors",
    "Partition": "litegpu.delegation.report",
    "PartitionProfile": "litegpu.delegation.profile",
    "Peaks": "litegpu.engine.peaks",
    "Profile": "litegpu.delegation.profile",
    "Progress": "litegpu.progress",
    "QuantizedSupport": "litegpu.delegation.report",
    "RejectedNode": "litegpu.delegation.report",
    "RunTimeoutError": "litegpu.errors",
    "Session": "litegpu.language_model",
    "Split": "litegpu.delegation.cost_model",
    "TaskError": "litegpu.errors",
    "TensorBuffer": "litegpu.compiled_model",
    "TextStream": "litegpu.language_model",
    "UnsupportedDeviceError": "litegpu.errors",
    "accelerate": "litegpu.acceleration",
    "check": "litegpu.tools.check.model_check",
    "list_devices": "litegpu.backends",
    "model_token": "litegpu.cache.token",
    "register_op": "litegpu.custom_op",
    "share_opengl_context": "litegpu.backends.opengl.device",
}
"""The module of each public name, imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    module = f"{__name__}.{name}"
    if any(f"{home}.".startswith(f"{module}.") for home in _HOMES.values()):
        return importlib.import_module(module)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
