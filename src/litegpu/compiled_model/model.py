"""CompiledModel: the calls of LiteRT's class of that name, and a short way."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.buffers import HostBuffer
from litegpu.compiled_model.accelerators import wanted
from litegpu.compiled_model.fitting import as_buffer, at, called, check, requirements
from litegpu.compiled_model.signatures import MainSignature, Signature, Tensor, signatures_of
from litegpu.compiled_model.tensor_buffer import TensorBuffer
from litegpu.delegate import GpuDelegate
from litegpu.direct_run import DirectRun
from litegpu.errors import CompiledModelError, ForkedProcessError, ModelError, did_you_mean
from litegpu.partition_kernel import PartitionKernel
from litegpu.pictures import KEYWORDS, with_picture_input
from litegpu.report import DelegationReport
from litegpu.tools import runtime
from litegpu.zoo import resolve_model

_MOST_BOUND = 16
"""Sets of buffers whose runs stay prepared."""


class CompiledModel:
    """A model that is run on buffers: what fits a GPU there, the rest on the CPU.

    It has the methods of `ai_edge_litert.compiled_model.CompiledModel`, with the same meaning::

        model = CompiledModel.from_file("model.tflite")
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        inputs[0].write(picture)
        model.run_by_index(0, inputs, outputs)
        scores = outputs[0].read()

    and a short one: `scores = model(picture)`. Where the GPU runs the whole of a model, it reads
    and writes the buffers themselves. Threads may share a model; their runs take turns.
    """

    def __init__(
        self,
        content: bytes,
        hardware_accel: int | None = None,
        environment: Any = None,
        options: Any = None,
        **delegate: Any,
    ) -> None:
        """Compile the bytes of a .tflite file; see from_buffer."""
        requested = wanted(hardware_accel, options)
        if "input_format" in delegate:
            picture = {name: delegate.pop(name) for name in KEYWORDS if name in delegate}
            try:
                content = with_picture_input(content, **picture)
            except ModelError as error:
                raise CompiledModelError(str(error)) from error
        if delegate and not requested.gpu:
            names = ", ".join(delegate)
            raise CompiledModelError(f"{names}: these are for the GPU, which was not asked for.")
        if requested.float32:
            delegate.setdefault("precision", "fp32")
        self._environment = environment
        self._delegate = GpuDelegate(**delegate) if requested.gpu else None
        try:
            self._interpreter = runtime.interpreter(content, self._delegate, requested.threads)
        except ModelError as error:
            raise CompiledModelError(str(error)) from error
        self._signatures = signatures_of(self._interpreter)
        self._bound = OrderedDict[tuple[int, ...], tuple[Any, Callable[[], None]]]()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    @classmethod
    def from_file(
        cls,
        model_path: str | os.PathLike[str],
        hardware_accel: int | None = None,
        environment: Any = None,
        options: Any = None,
        **delegate: Any,
    ) -> CompiledModel:
        """Compile a .tflite file, or `zoo:NAME`. See from_buffer."""
        try:
            content = resolve_model(os.fspath(model_path))
        except ModelError as error:
            raise CompiledModelError(str(error)) from error
        return cls(content, hardware_accel, environment, options, **delegate)

    @classmethod
    def from_buffer(
        cls,
        model_data: bytes,
        hardware_accel: int | None = None,
        environment: Any = None,
        options: Any = None,
        **delegate: Any,
    ) -> CompiledModel:
        """Compile the bytes of a .tflite file.

        `hardware_accel` and `options` are LiteRT's; without them the GPU takes what it can run, and
        the CPU the rest. Further keywords are those of GpuDelegate: `backend="cuda"`,
        `precision="fp16"`, `cache=True`; or, with `input_format`, those of
        `pictures.with_picture_input`: the model then takes a picture's bytes.
        `environment` is kept for who asks for it.

        Raises CompiledModelError for what is no model and for accelerators that do not exist, and
        what GpuDelegate raises.
        """
        return cls(bytes(model_data), hardware_accel, environment, options, **delegate)

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the model has on the device; its buffers stay. Harmless when repeated."""
        with self._lock:
            self._closed = True
            self._bound.clear()
            if self._delegate is not None:
                self._delegate.close()
            self._interpreter = None
            self._signatures = []

    @property
    def environment(self) -> Any:
        """What was passed as the environment."""
        return self._environment

    @property
    def report(self) -> DelegationReport | None:
        """What runs on the GPU and why the rest does not; None without a GPU."""
        return self._delegate.report if self._delegate is not None else None

    # Signatures

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Return the names of inputs and outputs of each signature."""
        return {
            each.key: {
                "inputs": [tensor.key for tensor in each.inputs],
                "outputs": [tensor.key for tensor in each.outputs],
            }
            for each in self._open()
        }

    def get_signature_by_index(self, index: int) -> dict[str, Any]:
        """Return the name of a signature, and those of its inputs and outputs."""
        key = self._signature(index).key
        return {"key": key, **self.get_signature_list()[key]}

    def get_num_signatures(self) -> int:
        """Return how many signatures there are."""
        return len(self._open())

    def get_signature_index(self, key: str) -> int:
        """Return the number of a signature, -1 where there is none of that name."""
        return next((i for i, each in enumerate(self._open()) if each.key == key), -1)

    def get_input_tensor_details(self, signature_key: str) -> dict[str, Any]:
        """Return name, index, dtype and present shape of each input."""
        return {each.key: each.to_dict() for each in self._named(signature_key).inputs}

    def get_output_tensor_details(self, signature_key: str) -> dict[str, Any]:
        """Return name, index, dtype and present shape of each output."""
        return {each.key: each.to_dict() for each in self._named(signature_key).outputs}

    def is_fully_accelerated(self) -> bool:
        """Whether no node is left to a processor that was not requested for, or to the CPU."""
        self._open()
        report = self.report
        if self._delegate is None:
            return True
        return report is not None and len(report.delegated_nodes) == report.total_nodes

    # Buffers

    def get_input_buffer_requirements(
        self, input_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """Return the bytes of an input's buffer, and the kinds of memory it may have."""
        return requirements(at(self._signature(signature_index).inputs, input_index, "Input"))

    def get_output_buffer_requirements(
        self, output_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """Return the bytes of an output's buffer, and the kinds of memory it may have."""
        return requirements(at(self._signature(signature_index).outputs, output_index, "Output"))

    def create_input_buffers(self, signature_index: int = 0) -> list[TensorBuffer]:
        """Return a buffer of zeros for each input."""
        return [*map(self._buffer, self._signature(signature_index).inputs)]

    def create_output_buffers(self, signature_index: int = 0) -> list[TensorBuffer]:
        """Return a buffer of zeros for each output."""
        return [*map(self._buffer, self._signature(signature_index).outputs)]

    def create_input_buffer_by_name(self, signature_key: str, input_name: str) -> TensorBuffer:
        """Return a buffer of zeros for an input."""
        return self._buffer(called(self._named(signature_key).inputs, input_name, "Input"))

    def create_output_buffer_by_name(self, signature_key: str, output_name: str) -> TensorBuffer:
        """Return a buffer of zeros for an output."""
        return self._buffer(called(self._named(signature_key).outputs, output_name, "Output"))

    def _buffer(self, tensor: Tensor) -> TensorBuffer:
        if tensor.dtype.hasobject or tensor.dtype.kind in "SU":
            raise CompiledModelError(
                f"'{tensor.key}' holds strings, for which there are no buffers. Use the "
                "interpreter for this model."
            )
        kernel = self._whole()
        on_host = HostBuffer.allocate if kernel is None else kernel.allocate_host
        buffer = TensorBuffer(on_host(tensor.nbytes), tensor.dtype, tensor.shape)
        buffer.array.fill(0)
        return buffer

    # Shapes

    def resize_input_tensor(
        self, input_index: int, dims: Sequence[int], signature_index: int = 0, strict: bool = True
    ) -> None:
        """Give an input another shape; `strict`: only sizes that the model leaves open.

        Buffers made before fit no longer where sizes have changed.
        """
        signature = self._signature(signature_index)
        at(signature.inputs, input_index, "Input")
        with self._lock:
            self._bound.clear()
            signature.resize(input_index, [*map(int, dims)], strict)

    def resize_input_tensor_by_name(
        self, signature_key: str, input_name: str, dims: Sequence[int], strict: bool = True
    ) -> None:
        """Give an input another shape. See resize_input_tensor."""
        signature = self._named(signature_key)
        tensor = called(signature.inputs, input_name, "Input")
        number = [each.key for each in signature.inputs].index(tensor.key)
        self.resize_input_tensor(number, dims, self.get_signature_index(signature_key), strict)

    # Runs

    def run_by_index(
        self,
        signature_index: int,
        input_buffers: Sequence[TensorBuffer],
        output_buffers: Sequence[TensorBuffer],
    ) -> None:
        """Run a signature once, from buffers into buffers, in the order of its graph.

        Raises CompiledModelError for buffers that do not fit, ExecutionError when the device fails.
        """
        buffers = (*input_buffers, *output_buffers)
        key = (signature_index, len(input_buffers), *map(id, buffers))
        with self._lock:
            for each in buffers:
                each.memory  # noqa: B018 - raises for one that was destroyed
            if self._pid != os.getpid():
                raise ForkedProcessError(
                    "This model was compiled before the process was forked. Compile it in the "
                    'child; start children with multiprocessing.get_context("spawn").'
                )
            found = self._bound.get(key)
            if found is None:
                signature = self._signature(signature_index)
                run = self._prepared(signature, input_buffers, output_buffers)
                found = self._bound[key] = (buffers, run)
                if len(self._bound) > _MOST_BOUND:
                    self._bound.popitem(last=False)
            found[1]()

    def run_by_name(
        self,
        signature_key: str,
        input_map: Mapping[str, TensorBuffer],
        output_map: Mapping[str, TensorBuffer],
    ) -> None:
        """Run a signature once, from buffers into buffers, by the names of its tensors."""
        signature = self._named(signature_key)
        sides = ((signature.inputs, input_map, "input"), (signature.outputs, output_map, "output"))
        for tensors, given, side in sides:
            names = {tensor.key for tensor in tensors}
            if names != set(given):
                missing, unknown = sorted(names - set(given)), sorted(set(given) - names)
                raise CompiledModelError(
                    f"The given map is missing some {side} TensorBuffers or has others: missing "
                    f"{missing}, unknown {unknown}. Give one for each of {sorted(names)}."
                )
        ordered = [[given[t.key] for t in tensors] for tensors, given, _ in sides]
        self.run_by_index(self.get_signature_index(signature_key), *ordered)

    def __call__(self, *inputs: npt.ArrayLike, **named: npt.ArrayLike) -> Any:
        """Run the first signature on arrays; return a new one, or a dict of several by name.

        Arrays are given in order or by name, and are of the tensors' types or become so safely.
        Raises CompiledModelError for other shapes: `resize_input_tensor` changes them.
        """
        signature = self._signature(0)
        given = dict(zip([tensor.key for tensor in signature.inputs], inputs, strict=False))
        twice = sorted(set(given) & set(named))
        given.update(named)
        if twice or len(inputs) > len(given) or set(given) != {t.key for t in signature.inputs}:
            raise CompiledModelError(
                f"The model takes {[t.key for t in signature.inputs]}, each once; it was given "
                f"{len(inputs)} in order and {sorted(named)} by name."
            )
        sources = [as_buffer(tensor, given[tensor.key]) for tensor in signature.inputs]
        targets = [
            TensorBuffer(HostBuffer.allocate(tensor.nbytes), tensor.dtype, tensor.shape)
            for tensor in signature.outputs
        ]
        with self._lock:
            self._prepared(signature, sources, targets)()
        results = {t.key: b.array for t, b in zip(signature.outputs, targets, strict=True)}
        return next(iter(results.values())) if len(results) == 1 else results

    def _prepared(
        self, signature: Signature, inputs: Sequence[TensorBuffer], outputs: Sequence[TensorBuffer]
    ) -> Callable[[], None]:
        """Return what runs a signature on buffers."""
        for side, tensors, buffers in (
            ("Input", signature.inputs, inputs),
            ("Output", signature.outputs, outputs),
        ):
            check(side, tensors, buffers)
        kernel = self._whole()
        if kernel is not None and isinstance(signature, MainSignature):
            ins = {t.index: b.memory for t, b in zip(signature.inputs, inputs, strict=True)}
            outs = {t.index: b.memory for t, b in zip(signature.outputs, outputs, strict=True)}
            if DirectRun.can_run(kernel, set(ins), set(outs)):
                return DirectRun(kernel, ins, outs)

        def run() -> None:
            results = signature.run([buffer.array for buffer in inputs])
            for number, (buffer, result) in enumerate(zip(outputs, results, strict=True)):
                if result.size != buffer.array.size:
                    raise signature.grown(number, result.shape)
                np.copyto(buffer.array, result.reshape(buffer.array.shape))

        return run

    def _whole(self) -> PartitionKernel | None:
        return self._delegate.whole() if self._delegate is not None else None

    def _open(self) -> list[Signature]:
        if self._closed:
            raise CompiledModelError("The model was closed. Compile it anew.")
        return self._signatures

    def _signature(self, index: int) -> Signature:
        return at(self._open(), index, "Signature")

    def _named(self, key: str) -> Signature:
        for each in self._open():
            if each.key == key:
                return each
        known = [each.key for each in self._signatures]
        raise CompiledModelError(f"Signature not found: '{key}'.{did_you_mean(key, known)}")
