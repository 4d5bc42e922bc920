"""litegpu: the GPU delegate for TensorFlow Lite (LiteRT) models in Python."""

from litegpu.backends import list_devices
from litegpu.backends.base import DeviceInfo
from litegpu.delegate import GpuDelegate
from litegpu.errors import (
    CompilationError,
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
    UnsupportedDeviceError,
)
from litegpu.options import (
    ExperimentalFlags,
    GpuDelegateOptions,
    InferencePreference,
    InferencePriority,
)
from litegpu.profiling import KernelProfile, PartitionProfile, Profile
from litegpu.report import DelegationReport
from litegpu.version import __version__

__all__ = [
    "CompilationError",
    "DelegationReport",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceMemoryError",
    "ExecutionError",
    "ExperimentalFlags",
    "ForkedProcessError",
    "GpuDelegate",
    "GpuDelegateOptions",
    "InferencePreference",
    "InferencePriority",
    "InterpreterError",
    "InvokeTimeoutError",
    "KernelProfile",
    "LitegpuError",
    "MissingDependencyError",
    "ModelError",
    "OptionsError",
    "PartitionProfile",
    "Profile",
    "UnsupportedDeviceError",
    "__version__",
    "list_devices",
]
