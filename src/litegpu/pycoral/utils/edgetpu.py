"""Interpreters that run on a GPU, made by PyCoral's functions for the Edge TPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu import files
from litegpu.backends import list_devices
from litegpu.delegation.delegate import GpuDelegate
from litegpu.errors import ModelError, OptionsError
from litegpu.pycoral.adapters import common
from litegpu.runtime_abi import interpreter as runtime
from litegpu.version import __version__
from litegpu.zoo.files import model_bytes

_COMPILED = "edgetpu-custom-op"
"""The operation that the Edge TPU's compiler writes in place of others."""


def get_runtime_version() -> str:
    """Return the name and version of litegpu."""
    return f"litegpu {__version__}"


def list_edge_tpus() -> list[dict[str, str]]:
    """Return the GPUs: `type` is the backend, `path` the name for `make_interpreter`."""
    return [
        {"type": each.backend, "path": f"{each.backend}:{each.index}"} for each in list_devices()
    ]


def load_edgetpu_delegate(options: Mapping[str, Any] | None = None) -> GpuDelegate:
    """Return a GpuDelegate.

    `options` are those of GpuDelegate; `device` may also be PyCoral's ":0", ":1" and so on: an
    index of `list_edge_tpus()`.

    Raises OptionsError for the devices "usb" and "pci", which are no GPUs, and for options that are
    no mapping, such as the name of a library; and the errors of GpuDelegate.
    """
    if not isinstance(options, Mapping | None):
        raise OptionsError(
            f"The options of a delegate are a mapping, not {options!r}. For example: "
            "load_edgetpu_delegate({'precision': 'fp16'})."
        )
    given = dict(options or {})
    device = given.get("device")
    if isinstance(device, str):
        if device.partition(":")[0] in ("usb", "pci"):
            raise OptionsError(
                f"The device '{device}' is an Edge TPU. Leave `device` out, or name a GPU: ':0' or "
                "a path of list_edge_tpus()."
            )
        given["device"] = int(device[1:]) if device[1:].isdecimal() and device[0] == ":" else device
    return GpuDelegate(**given)


def make_interpreter(
    model_path_or_content: str | bytes,
    device: str | None = None,
    delegate: GpuDelegate | None = None,
) -> Any:
    """Return an interpreter whose supported operations run on a GPU.

    `model_path_or_content` is the path or the bytes of a .tflite file before the Edge TPU's
    compiler. `device` is a device of `load_edgetpu_delegate`. `delegate` is the result of
    `load_edgetpu_delegate`; `device` is then ignored.

    Raises ModelError if the model cannot be read or the Edge TPU's compiler wrote it, OptionsError
    if `delegate` is not the result of `load_edgetpu_delegate`, and the errors of that function.
    """
    is_content = isinstance(model_path_or_content, bytes)
    content = _content(model_path_or_content)
    if not isinstance(delegate, GpuDelegate | None):
        raise OptionsError(
            f"The delegate {delegate!r} is no GpuDelegate. Leave `delegate` out, or give the "
            "result of load_edgetpu_delegate(options)."
        )
    used = delegate or load_edgetpu_delegate({"device": device} if device else {})
    used.model = model_path_or_content
    interpreter = runtime.load().Interpreter(model_content=content, experimental_delegates=[used])
    if used.report and any(each.op == _COMPILED for each in used.report.rejected):
        name = "The model" if is_content else str(model_path_or_content)
        raise ModelError(
            f"{name} was compiled for the Edge TPU, and runs only there. Use the .tflite file from "
            "which edgetpu_compiler wrote it."
        )
    return interpreter


def _content(model: str | os.PathLike[str] | bytes) -> bytes:
    """Return the bytes of a model. Raises ModelError if it cannot be read, or is no model."""
    content = model_bytes(model)
    if content[4:8] != files.MODEL_IDENTIFIER:
        raise ModelError(
            f"The model ({len(content)} bytes) is no .tflite file: it does not contain TFL3 at "
            "byte 4. Give the path or the bytes of a .tflite file."
        )
    return content


def run_inference(
    interpreter: Any, input_data: bytes | NDArray[Any] | tuple[ctypes.c_void_p, int]
) -> None:
    """Copy raw bytes to the first input, and invoke.

    `input_data` has the elements of the input in one axis, or is a pointer with a size in bytes.
    Buffers of GStreamer are not supported.

    Raises ValueError if the size differs from that of the input, and TypeError for other types.
    """
    tensor = common.input_tensor(interpreter)
    if isinstance(input_data, np.ndarray):
        data = np.ascontiguousarray(input_data).tobytes()
    elif isinstance(input_data, bytes):
        data = input_data
    elif isinstance(input_data, tuple) and isinstance(input_data[0], ctypes.c_void_p):
        pointer, size = input_data
        data = ctypes.string_at(pointer, size)
    else:
        raise TypeError(
            f"The input is {type(input_data).__name__}, not bytes, a NumPy array, or a pointer "
            "with its size."
        )
    if len(data) != tensor.nbytes:
        raise ValueError(f"The input has {len(data)} bytes, and the model takes {tensor.nbytes}.")
    tensor[...] = np.frombuffer(data, tensor.dtype).reshape(tensor.shape)
    del tensor  # the interpreter does not run while there is a view
    interpreter.invoke()
