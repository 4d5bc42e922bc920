"""The part of CompiledModel for signatures, tensors and new buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litegpu.compiled_model.call import new_buffer
from litegpu.compiled_model.contexts import ContextPool
from litegpu.compiled_model.fitting import at, called, requirements, sizes
from litegpu.compiled_model.instance import Instance
from litegpu.compiled_model.signatures import PLACEHOLDER, Signature, Tensor
from litegpu.delegation import notebook
from litegpu.delegation.profile import Profile
from litegpu.delegation.report import DelegationReport
from litegpu.errors import CompiledModelError, did_you_mean
from litegpu.tensor_buffer import TensorBuffer
from litegpu.wording import printable, shown_size


class ModelTensors:
    """Describes a model's signatures and tensors; CompiledModel adds the runs."""

    def __init__(self, pool: ContextPool, nbytes: int) -> None:
        """Describe the model of these contexts, whose file has `nbytes` bytes."""
        self._pool = pool
        self._main: Instance = pool.all[0].instance
        self._closed = False
        self._name = f"of {shown_size(nbytes)}"

    def __repr__(self) -> str:
        name = printable(self._name)
        if self._closed:
            return f"<CompiledModel {name}: closed>"
        sides = (self.signature.inputs, self.signature.outputs)
        inputs, outputs = (printable(", ".join(map(str, tensors))) for tensors in sides)
        return f"<CompiledModel {name} {self.place}; {inputs} -> {outputs}>"

    def _repr_html_(self) -> str:
        """Return tables for notebooks."""
        title = notebook.paragraph(f"CompiledModel {self._name}", bold=True)
        if self._closed:
            return title + notebook.paragraph("closed")
        tensors = notebook.table(
            ("signature", "", "name", "type", "shape"),
            [
                (each.key, side, tensor.key, tensor.dtype.name, str([*tensor.shape]))
                for each in self._open()
                for side, tensors in (("input", each.inputs), ("output", each.outputs))
                for tensor in tensors
            ],
        )
        report = self.report
        place = report._repr_html_() if report else notebook.paragraph(self.place)
        return title + tensors + place

    @property
    def place(self) -> str:
        """Where the model runs: the device, the precision, and the number of delegated nodes."""
        delegate = self._main.delegate
        if delegate is None:
            return "on the CPU"
        report = delegate.report
        nodes = (
            f": {len(report.delegated_nodes)} of {report.total_nodes} nodes on the GPU"
            if report
            else ""
        )
        return f"on {delegate.device.title}, {delegate.precision}{nodes}"

    def profile(
        self, *, signature: str | None = None, repeats: int = 20, peaks: bool = True
    ) -> Profile:
        """Measure the time of each kernel, in seconds, as GpuDelegate.profile does.

        `signature` is a signature's name; None selects the first signature, as in a call. The
        method waits for all runs in flight, and blocks new runs until it returns. `invoke_seconds`
        is the time of a complete run of the signature by the interpreter. If the model has several
        `contexts`, the method measures the first one.

        Raises CompiledModelError for a model without a GPU and for an unknown signature, and the
        errors of GpuDelegate.profile.
        """
        chosen = self.signature if signature is None else self._named(signature)
        delegate, interpreter = self._main.delegate, self._main.interpreter
        if delegate is None:
            raise CompiledModelError(
                "profile() measures the GPU, which was not requested. Compile the model without "
                "hardware_accel, or with GPU in it."
            )
        return self._pool.use_all(
            lambda: delegate.profile(
                interpreter,
                signature=None if chosen.key == PLACEHOLDER else chosen.key,
                repeats=repeats,
                peaks=peaks,
            )
        )

    @property
    def report(self) -> DelegationReport | None:
        """Which nodes run on the GPU, and why others do not; None if the GPU was not requested."""
        delegate = self._main.delegate
        return delegate.report if delegate is not None else None

    # Signatures

    @property
    def signature(self) -> Signature:
        """The first signature, which a call of the model runs, with current shapes."""
        return self._signature(0)

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """All signatures in the order of the file, with current shapes."""
        return tuple(self._open())

    def runs_directly(self, index: int) -> bool:
        """Whether the GPU runs a whole signature on its buffers, without the interpreter."""
        return self._main.runs_directly(self._signature(index))

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
        """Return the name of a signature, and the names of its inputs and outputs."""
        key = self._signature(index).key
        return {"key": key, **self.get_signature_list()[key]}

    def get_num_signatures(self) -> int:
        """Return the number of signatures."""
        return len(self._open())

    def get_signature_index(self, key: str) -> int:
        """Return the number of the signature with a name; -1 if there is none."""
        return next((i for i, each in enumerate(self._open()) if each.key == key), -1)

    def get_input_tensor_details(self, signature_key: str) -> dict[str, Any]:
        """Return name, index, dtype and current shape of each input."""
        return {each.key: each.to_dict() for each in self._named(signature_key).inputs}

    def get_output_tensor_details(self, signature_key: str) -> dict[str, Any]:
        """Return name, index, dtype and current shape of each output."""
        return {each.key: each.to_dict() for each in self._named(signature_key).outputs}

    def is_fully_accelerated(self) -> bool:
        """Whether all nodes run on the requested processors, without a fallback to the CPU."""
        self._open()
        report = self.report
        if self._main.delegate is None:
            return True
        return report is not None and len(report.delegated_nodes) == report.total_nodes

    # Buffers

    def get_input_buffer_requirements(
        self, input_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """Return the size of an input's buffer in bytes, and the kinds of memory it may have."""
        return requirements(at(self._signature(signature_index).inputs, input_index, "Input"))

    def get_output_buffer_requirements(
        self, output_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """Return the size of an output's buffer in bytes, and the kinds of memory it may have."""
        return requirements(at(self._signature(signature_index).outputs, output_index, "Output"))

    def create_input_buffers(
        self, signature_index: int = 0, memory: str | None = None
    ) -> list[TensorBuffer]:
        """Return a buffer of zeros for each input.

        `memory` is "host", "pinned" (page-locked where the API supports it; the default if the GPU
        runs the whole model) or "device".
        """
        return self._buffers(self._signature(signature_index).inputs, memory)

    def create_output_buffers(
        self, signature_index: int = 0, memory: str | None = None
    ) -> list[TensorBuffer]:
        """Return a buffer of zeros for each output; see create_input_buffers for `memory`."""
        return self._buffers(self._signature(signature_index).outputs, memory)

    def create_input_buffer_by_name(
        self, signature_key: str, input_name: str, memory: str | None = None
    ) -> TensorBuffer:
        """Return a buffer of zeros for an input; see create_input_buffers for `memory`."""
        tensor = called(self._named(signature_key).inputs, input_name, "Input")
        return self._buffers([tensor], memory)[0]

    def create_output_buffer_by_name(
        self, signature_key: str, output_name: str, memory: str | None = None
    ) -> TensorBuffer:
        """Return a buffer of zeros for an output; see create_input_buffers for `memory`."""
        tensor = called(self._named(signature_key).outputs, output_name, "Output")
        return self._buffers([tensor], memory)[0]

    def _buffers(self, tensors: Sequence[Tensor], memory: str | None) -> list[TensorBuffer]:
        return [new_buffer(tensor, self._main, memory) for tensor in tensors]

    # Shapes

    def resize_input_tensor(
        self, input_index: int, dims: Sequence[int], signature_index: int = 0, strict: bool = True
    ) -> None:
        """Resize an input; with `strict`, only dimensions that have size -1 in the file may change.

        A tensor whose size has changed needs a new buffer.
        """
        signature = self._signature(signature_index)
        at(signature.inputs, input_index, "Input")
        shape = sizes(dims)
        self._pool.use_all(lambda: self._resize(signature_index, input_index, shape, strict))

    def _resize(self, index: int, number: int, shape: Sequence[int], strict: bool) -> None:
        for context in self._pool.all:
            context.forget()
        for instance in self._instances():
            instance.resize(index, number, shape, strict)

    def resize_input_tensor_by_name(
        self, signature_key: str, input_name: str, dims: Sequence[int], strict: bool = True
    ) -> None:
        """Resize an input by its name. See resize_input_tensor."""
        signature = self._named(signature_key)
        tensor = called(signature.inputs, input_name, "Input")
        number = [each.key for each in signature.inputs].index(tensor.key)
        self.resize_input_tensor(number, dims, self.get_signature_index(signature_key), strict)

    def _instances(self) -> list[Instance]:
        return [*dict.fromkeys(context.instance for context in self._pool.all)]

    def _open(self) -> list[Signature]:
        if self._closed:
            raise CompiledModelError("The model was closed. Compile it again.")
        return self._main.signatures

    def _signature(self, index: int) -> Signature:
        return at(self._open(), index, "Signature")

    def _named(self, key: str) -> Signature:
        for each in self._open():
            if each.key == key:
                return each
        known = [each.key for each in self._open()]
        raise CompiledModelError(f"Signature not found: '{key}'.{did_you_mean(key, known)}")
