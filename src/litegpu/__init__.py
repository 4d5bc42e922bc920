"""litegpu: the GPU delegate for TensorFlow Lite (LiteRT) models in Python."""

from litegpu.backends import list_devices
from litegpu.backends.base import DeviceInfo
from litegpu.costs import Estimate, Split
from litegpu.delegate import GpuDelegate
from litegpu.engine.peaks import Peaks
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
    GpuDelegateKeywords,
    GpuDelegateOptions,
    InferencePreference,
    InferencePriority,
)
from litegpu.profiling import KernelProfile, OpTotal, PartitionProfile, Profile
from litegpu.report import Advice, DelegationReport, LeftOut, Partition, RejectedNode
from litegpu.version import __version__

__all__ = [
    "Advice",
    "CompilationError",
    "DelegationReport",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceMemoryError",
    "Estimate",
    "ExecutionError",
    "ExperimentalFlags",
    "ForkedProcessError",
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
    "OpTotal",
    "OptionsError",
    "Partition",
    "PartitionProfile",
    "Peaks",
    "Profile",
    "RejectedNode",
    "Split",
    "UnsupportedDeviceError",
    "__version__",
    "list_devices",
]
