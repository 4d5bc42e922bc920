"""litegpu.accelerate: the interpreters that other packages create use the delegate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from litegpu.acceleration import c_interpreters, python_interpreters
from litegpu.acceleration.session import AcceleratedModel, Acceleration
from litegpu.delegation.delegate import GpuDelegate
from litegpu.options import GpuDelegateKeywords, GpuDelegateOptions
from litegpu.progress import OnProgress

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AcceleratedModel", "Acceleration", "accelerate"]


def accelerate(
    options: GpuDelegateOptions | GpuDelegateKeywords | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **kwargs: Unpack[GpuDelegateKeywords],
) -> Acceleration:
    """Let each interpreter that this process creates from now on use its own GpuDelegate.

    Use the function for packages that create their interpreters themselves:

        litegpu.accelerate(precision="fp16")
        model = YOLO("yolo11n.tflite")

    The arguments are those of GpuDelegate. The result is a context manager: `close()`, or the end
    of a `with` block, ends the acceleration. Interpreters that exist then keep their delegates.

    The function changes `Interpreter.__init__` of ai_edge_litert, tflite_runtime and tf.lite, also
    of those that are imported later. The function also changes `ctypes.CDLL`, for packages that
    load TensorFlow Lite's C library with ctypes. Interpreters that already have a GpuDelegate, and
    those that litegpu creates, are not changed. The function cannot reach interpreters in C++
    extension modules and in other processes, which call it themselves (`litegpu exec` reaches
    those that it starts).

    The acceleration applies to all threads. If several are active, the last one that was started
    determines the options. If a delegate cannot be created later, for example in a forked process,
    the interpreter runs on the CPU, and litegpu logs a warning.

    Raises the errors of GpuDelegate.
    """
    first = GpuDelegate(options, on_progress=on_progress, **kwargs)
    acceleration = Acceleration(first.options, on_progress, _uninstall)
    first.close()
    acceleration.start(_install)
    return acceleration


def _install() -> None:
    python_interpreters.install()
    c_interpreters.install()


def _uninstall() -> None:
    python_interpreters.uninstall()
    c_interpreters.uninstall()
