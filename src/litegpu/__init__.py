"""litegpu: the GPU delegate for TensorFlow Lite (LiteRT) models in Python."""

from litegpu.backends import list_devices
from litegpu.backends.base import DeviceInfo
from litegpu.delegate import GpuDelegate
from litegpu.errors import (
    CompilationError,
    DeviceMemoryError,
    ExecutionError,
    InterpreterError,
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
    "DeviceMemoryError",
    "ExecutionError",
    "ExperimentalFlags",
    "GpuDelegate",
    "GpuDelegateOptions",
    "InferencePreference",
    "InferencePriority",
    "InterpreterError",
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
