"""The delegate's C struct, and the callbacks with which the runtime applies the delegate.

`callbacks.py` prevents exceptions in C code. `kernel_slots.py` manages the kernels of the nodes
that replace partitions.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from litegpu.errors import InterpreterError, LitegpuError
from litegpu.graph.partition import Subset
from litegpu.runtime_abi import kernel_slots, structs
from litegpu.runtime_abi.callbacks import Callback
from litegpu.runtime_abi.enums import DelegateFlags, TfLiteStatus
from litegpu.runtime_abi.reader import UPGRADE, execution_plan, node_at, tensor_at

_CUSTOM_NAME = b"TfLiteGpuDelegateV2"


class Applicant(Protocol):
    """The object that decides what a delegate does when an interpreter applies it."""

    def _apply(
        self, context: int, preview: Callable[[Sequence[int]], list[Subset]]
    ) -> list[list[int]]:
        """Return groups of nodes to replace; a later replacement of these nodes must not fail.

        The runtime never merges nodes of two groups into one partition.
        """

    def _take_kernel(self, context: int, subset: Subset) -> kernel_slots.SlotKernel:
        """Return the kernel for a subset that the runtime has replaced."""

    def _release_untaken(self, context: int) -> None:
        """Release the compiled kernels of an interpreter that were assigned to no node."""

    def _fail(self, error: BaseException) -> None:
        """Store an error that cannot propagate through C code."""

    def _prepared(self, kernel: kernel_slots.SlotKernel, error: BaseException | None) -> None:
        """Record new shapes of a kernel, and its recovery from `error`, if any."""


class NativeDelegate:
    """Owns the C structs of one delegate, one struct per thread that applies the delegate."""

    def __init__(self, applicant: Applicant, api: str = "") -> None:
        """Create the structs for an applicant, which owns this object and has opened an `api`."""
        # Not a strong reference: partitions keep this object alive; through the applicant they
        # might keep the interpreter alive that should release them.
        self._applicant = weakref.ref(applicant)
        self._applications: dict[int, _Application] = {}
        kernel_slots.close_at_exit(api)

    @property
    def address(self) -> int:
        """Address of the `TfLiteDelegate` for this thread to apply."""
        thread = threading.get_ident()
        if thread not in self._applications:
            self._applications[thread] = _Application(self)
        return self._applications[thread].address

    @property
    def applicant(self) -> Applicant:
        """The delegate. Raises InterpreterError if the delegate was deleted."""
        found = self._applicant()
        if found is None:
            raise InterpreterError(
                "The delegate was deleted, but an interpreter still uses it. "
                "Keep the GpuDelegate for as long as the interpreter."
            )
        return found

    def failed(self, error: BaseException) -> None:
        """Report a kernel's error to the applicant."""
        self.applicant._fail(error)

    def prepared(self, kernel: kernel_slots.SlotKernel, error: BaseException | None) -> None:
        """Report a kernel's new shapes to the applicant, if it still exists."""
        found = self._applicant()
        if found is not None:
            found._prepared(kernel, error)

    def close(self, error: Callable[[], LitegpuError]) -> None:
        """Release all kernels; later calls of interpreters raise `error`.

        Raises InterpreterError if this thread is running one of these kernels.
        """
        kernel_slots.retire_all(self, kernel_slots.Gone(error))


class _Application:
    """The C struct with which one thread applies a delegate to interpreters in sequence."""

    def __init__(self, native: NativeDelegate) -> None:
        self._native = native
        self._replaced = False
        self._callback = Callback(self._apply, self._failed)
        self._struct = structs.TfLiteDelegate()
        self._struct.Prepare = structs.DELEGATE_PREPARE(self._callback.address)
        # With this flag the runtime applies the delegate before it prepares nodes (so that it can
        # take custom ops without a CPU kernel), and accepts graphs with dynamic tensors.
        self._struct.flags = DelegateFlags.ALLOW_DYNAMIC_TENSORS

    @property
    def address(self) -> int:
        """Address of the `TfLiteDelegate`."""
        return ctypes.addressof(self._struct)

    def _apply(self, context: int) -> None:
        """Replace the nodes that the applicant returns."""
        self._replaced = False
        applicant = self._native.applicant
        groups = list(filter(None, applicant._apply(context, _preview(context))))
        for nodes in map(structs.make_int_array, groups):
            struct = structs.TfLiteContext.from_address(context)
            self._replaced = True
            status = struct.ReplaceNodeSubsetsWithDelegateKernels(
                context, _registration, ctypes.addressof(nodes), self.address
            )
            if status:
                raise InterpreterError(
                    f"The runtime does not replace nodes (status {status}). {UPGRADE}"
                )
        if groups:
            self._assign_kernels(context, applicant)
        applicant._release_untaken(context)

    def _assign_kernels(self, context: int, applicant: Applicant) -> None:
        """Assign a kernel to each node that has replaced a partition."""
        for index in execution_plan(context):
            node, registration = node_at(context, index)
            if node.delegate == self.address and not node.user_data:
                slot = kernel_slots.take_slot()
                slot.register(registration)
                node.user_data = slot.number
                kernel = applicant._take_kernel(context, _subset(node.builtin_data or 0))
                slot.assign(kernel, self._native, context)

    def _failed(self, context: int, error: BaseException) -> int:
        """Leave the model on the CPU, unless nodes are already replaced."""
        with contextlib.suppress(Exception):
            self._native.applicant._release_untaken(context)
        if not isinstance(error, Exception):
            return TfLiteStatus.OK
        with contextlib.suppress(Exception):
            self._native.applicant._fail(error)
        if self._replaced:
            kernel_slots.report(context, "Prepare", error)
            return TfLiteStatus.ERROR
        kernel_slots.warn("The model runs on the CPU, because the delegate failed: %s", error)
        return TfLiteStatus.OK


def _preview(context: int) -> Callable[[Sequence[int]], list[Subset]]:
    def preview(nodes: Sequence[int]) -> list[Subset]:
        array = structs.make_int_array(nodes)
        params, count = ctypes.c_void_p(), ctypes.c_int()
        status = structs.TfLiteContext.from_address(context).PreviewDelegatePartitioning(
            context, ctypes.addressof(array), ctypes.byref(params), ctypes.byref(count)
        )
        if status:
            raise InterpreterError(
                f"Unable to preview delegate partition (status {status}). {UPGRADE}"
            )
        step = ctypes.sizeof(structs.TfLiteDelegateParams)
        return [_subset((params.value or 0) + i * step) for i in range(count.value)]

    return preview


def _subset(address: int) -> Subset:
    params = structs.TfLiteDelegateParams.from_address(address)
    return Subset(
        structs.int_array(params.nodes_to_replace),
        structs.int_array(params.input_tensors),
        structs.int_array(params.output_tensors),
    )


def _raise_unassigned(context: int) -> None:
    # A text that users of TensorFlow Lite know; the cause was reported before.
    raise InterpreterError("delegate is not initialized")


def _report_unassigned(context: int, error: BaseException) -> int:
    kernel_slots.report(context, "Prepare", error)
    return TfLiteStatus.ERROR


def _make_registration() -> structs.TfLiteRegistration:
    """Return the registration of a node without a kernel, which has no user data to free."""
    registration = structs.TfLiteRegistration()
    registration.prepare = structs.NODE(_unassigned.address)
    registration.invoke = structs.NODE(_unassigned.address)
    registration.custom_name = _CUSTOM_NAME
    registration.version = 1
    return registration


_unassigned = Callback(_raise_unassigned, _report_unassigned)
_registration = _make_registration()

# The runtime stores their addresses: they must outlive this module.
for _immortal in (_unassigned, _registration, _CUSTOM_NAME):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))


def live_kernels() -> int:
    """Return the number of partitions that interpreters currently own."""
    return len(kernel_slots.kernels())


def tensor_shape(tensors: int, index: int) -> tuple[int, ...]:
    """Return the current shape of a tensor."""
    return structs.int_array(tensor_at(tensors, index).dims)


def resize_tensor(context: int, index: int, shape: Sequence[int]) -> None:
    """Set the shape of a tensor. Raises InterpreterError when the runtime rejects it."""
    struct = structs.TfLiteContext.from_address(context)
    address = (struct.tensors or 0) + index * ctypes.sizeof(structs.TfLiteTensor)
    status = struct.ResizeTensor(context, address, structs.malloc_int_array(shape))
    if status:
        raise InterpreterError(
            f"The runtime cannot resize tensor {index} to {list(shape)} (status {status}). "
            "Use a smaller input."
        )
