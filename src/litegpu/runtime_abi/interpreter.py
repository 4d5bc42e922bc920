"""Creates and runs interpreters: with the delegate, with XNNPACK, or without both."""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import InterpreterError, LitegpuError, ModelError, missing_dependency
from litegpu.host.mapped_files import release
from litegpu.runtime_abi.kernels import RUNTIMES, own_interpreter
from litegpu.runtime_abi.outside_weights import Binder, TablesOnly


@runtime_checkable
class ReadsModel(Protocol):
    """A delegate that reads parts of a model's bytes that the runtime does not provide."""

    model: bytes | None


class Output(NamedTuple):
    """One output of a model after a run, as real numbers (dequantised)."""

    name: str
    values: NDArray[Any]


def load() -> Any:
    """Return the module with the interpreter of the installed runtime.

    Raises:
        MissingDependencyError: no runtime is installed.
    """
    for name in RUNTIMES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise missing_dependency("ai-edge-litert", "runtime", "Running a model")


def environment() -> Any:
    """Return an environment like the one LiteRT creates for its models; None without LiteRT."""
    try:
        module = importlib.import_module("ai_edge_litert.environment")
    except ImportError:  # not installed, or an older version
        return None
    folder = os.path.dirname(str(module.__file__))
    return module.Environment.create(options=module.EnvironmentOptions(runtime_path=folder))


def default_threads() -> int:
    """Return the default number of threads for CPU kernels: all cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def interpreter(
    model: bytes,
    delegate: Any = None,
    threads: int | None = 1,
    builtin_kernels: bool = False,
    allocate: bool = True,
    keep_tensors: bool = False,
    clustering: bool = True,
) -> Any:
    """Return an interpreter, ready to run.

    Args:
        model: the bytes of the .tflite file, or its tables with constants outside of them.
        delegate: the delegate, a tuple of delegates in the order in which they are applied, or None
            for the CPU (XNNPACK where the runtime has it).
        threads: number of CPU threads; None leaves it to the runtime.
        builtin_kernels: use the runtime's built-in kernels, not XNNPACK.
        allocate: False leaves the tensors without memory. The delegate is always applied, even to
            ops for which the runtime has no kernel.
        keep_tensors: keep all tensors readable after an invoke, not only the outputs.
        clustering: False keeps the order of operations, which results in smaller partitions.

    Raises:
        ModelError: the runtime rejects the model.
        InterpreterError: the runtime is too old for `clustering`.
    """
    runtime = load()
    resolvers = runtime.OpResolverType
    further = {} if clustering else {"experimental_disable_delegate_clustering": True}
    delegates = delegate if isinstance(delegate, tuple) else (delegate,) if delegate else ()
    for each in delegates:
        if isinstance(each, ReadsModel):
            each.model = model
    binder = Binder(model.constants) if isinstance(model, TablesOnly) else None
    if binder is not None:
        delegates = (binder, *delegates)
    try:
        with own_interpreter():
            result = runtime.Interpreter(
                model_content=model,
                experimental_delegates=list(delegates) or None,
                num_threads=threads,
                experimental_preserve_all_tensors=keep_tensors,
                experimental_op_resolver_type=(
                    resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
                    if builtin_kernels
                    else resolvers.AUTO
                ),
                **further,
            )
        if allocate:
            result.allocate_tensors()
        if isinstance(model, TablesOnly):
            for data in {id(each): each for each in model.constants.values()}.values():
                release(data)
    except LitegpuError:
        raise
    except TypeError as error:
        if clustering:
            raise
        raise InterpreterError(
            f"This runtime cannot disable the clustering of delegates ({error}). Use a newer "
            "runtime: pip install --upgrade ai-edge-litert"
        ) from error
    except (RuntimeError, ValueError) as error:
        if binder is not None and binder.error is not None:
            raise binder.error from error
        raise ModelError(
            f"The runtime rejects this model: {_sentence(error)} "
            "Check that the file is a complete .tflite model, made of operations that the runtime "
            "has."
        ) from error
    return result


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") + "."


def set_batch(target: Any, batch: int) -> None:
    """Set the first dimension of every input of an interpreter to a batch size.

    Raises:
        ModelError: the model has inputs without dimensions, or cannot run such a batch.
    """
    try:
        for detail in target.get_input_details():
            shape = [int(size) for size in detail["shape"]]
            if not shape:
                raise ModelError(
                    f"The input {detail['name']} is a scalar without a batch dimension. Leave "
                    "--batch out."
                )
            target.resize_tensor_input(detail["index"], [batch, *shape[1:]])
        target.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        if isinstance(error, LitegpuError):
            raise
        raise ModelError(
            f"The model cannot run with batch={batch}: {_sentence(error)} "
            "Leave --batch out, or use a model of that batch."
        ) from error


def set_inputs(target: Any, values: list[NDArray[Any]]) -> None:
    """Set the value of each input of an interpreter, in the order of `get_input_details()`.

    The function resizes inputs to the shapes of the values.

    Raises:
        ModelError: the model cannot run on these shapes.
    """
    details = target.get_input_details()
    resized = [
        (detail["index"], value.shape)
        for detail, value in zip(details, values, strict=True)
        if tuple(detail["shape"]) != value.shape
    ]
    try:
        for index, shape in resized:
            target.resize_tensor_input(index, shape)
        if resized:
            target.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        if isinstance(error, LitegpuError):
            raise
        raise ModelError(
            f"The model cannot run on inputs of the shapes {[list(s) for _, s in resized]}: "
            f"{_sentence(error)} Use a model of these shapes."
        ) from error
    for detail, value in zip(details, values, strict=True):
        target.set_tensor(detail["index"], value)


def invoke(target: Any) -> None:
    """Run an interpreter once.

    Raises:
        ModelError: the runtime rejects the inputs' values.
    """
    try:
        target.invoke()
    except LitegpuError:
        raise
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"The model cannot run on these inputs: {_sentence(error)} Use another model, or "
            "inputs that the model supports."
        ) from error


def outputs(source: Any) -> list[Output]:
    """Return all outputs of the interpreter; quantized outputs are dequantized."""
    return [
        Output(detail["name"], dequantised(source.get_tensor(detail["index"]), detail))
        for detail in source.get_output_details()
    ]


def quantised(values: NDArray[Any], detail: dict[str, Any]) -> NDArray[Any]:
    """Return real numbers quantized as a tensor is, as float64; NaN stays NaN.

    Values are rounded half away from zero, as by QUANTIZE, and clipped to the range of the tensor's
    type.
    """
    scale, zero_point = detail["quantization"]
    limits = np.iinfo(detail["dtype"])
    steps = (values.astype(np.float32) / np.float32(scale)).astype(np.float64)
    rounded = np.copysign(np.floor(np.abs(steps) + 0.5), steps)
    stored: NDArray[Any] = np.clip(rounded + zero_point, limits.min, limits.max)
    return stored


def dequantised(values: NDArray[Any], detail: dict[str, Any]) -> NDArray[Any]:
    """Return the real numbers of a tensor; values that are not quantized are returned unchanged."""
    scale, zero_point = detail["quantization"]
    if not scale:
        return values
    real: NDArray[Any] = (values.astype(np.float32) - zero_point) * np.float32(scale)
    return real
