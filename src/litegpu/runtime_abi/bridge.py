"""The delegate as the runtime sees it: a C struct, and callbacks that let no exception into C.

The five callbacks live as long as the process, because an interpreter may call `free` after
everything else of litegpu has been dropped. Delegates and partitions are found through numbers
that travel in `TfLiteDelegate.data_` and `TfLiteNode.user_data`.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from litegpu.graph.partition import Subset
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.enums import DelegateFlags, TfLiteStatus
from litegpu.runtime_abi.reader import tensor_at

_log = logging.getLogger("litegpu")
_CUSTOM_NAME = b"TfLiteGpuDelegateV2"
_numbers = itertools.count(1)


class Kernel(Protocol):
    """What runs in place of a partition."""

    def prepare(self, context: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Get ready for the tensors' present shapes; `inputs` and `outputs` are their numbers."""

    def invoke(self, context: int) -> None:
        """Run on the tensors' present data."""

    def close(self) -> None:
        """Release everything."""


class Applicant(Protocol):
    """What a delegate does when an interpreter applies it."""

    def apply(self, context: int, preview: Callable[[Sequence[int]], list[Subset]]) -> list[int]:
        """Return the nodes to replace; nothing may fail for them afterwards."""

    def take_kernel(self, subset: Subset) -> Kernel:
        """Return the kernel for a subset that the runtime is about to replace."""

    def fail(self, error: BaseException) -> None:
        """Remember an error that could not be raised through C."""


class NativeDelegate:
    """Owns the C struct of one delegate."""

    def __init__(self, applicant: Applicant) -> None:
        """Register the applicant under a fresh number."""
        self._number = next(_numbers)
        self.struct = structs.TfLiteDelegate()
        self.struct.data_ = self._number
        self.struct.Prepare = _prepare_delegate
        # With this flag the runtime asks before it prepares nodes (so that custom ops without a
        # CPU kernel can be taken), and graphs with dynamic tensors are not refused as a whole.
        self.struct.flags = DelegateFlags.ALLOW_DYNAMIC_TENSORS
        _applicants[self._number] = applicant

    @property
    def address(self) -> int:
        """Address of the `TfLiteDelegate`."""
        return ctypes.addressof(self.struct)


_applicants: weakref.WeakValueDictionary[int, Applicant] = weakref.WeakValueDictionary()
_kernels: dict[int, tuple[Kernel, Applicant]] = {}


def _preview(context: int) -> Callable[[Sequence[int]], list[Subset]]:
    def preview(nodes: Sequence[int]) -> list[Subset]:
        array = structs.make_int_array(nodes)
        params, count = ctypes.c_void_p(), ctypes.c_int()
        status = structs.TfLiteContext.from_address(context).PreviewDelegatePartitioning(
            context, ctypes.addressof(array), ctypes.byref(params), ctypes.byref(count)
        )
        if status:
            raise OSError("Unable to preview delegate partition.")
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


_F = TypeVar("_F", bound=Callable[..., Any])


def _callback(prototype: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Return a decorator that makes a function callable from C, keeping its type."""
    return prototype


@_callback(structs.DELEGATE_PREPARE)
def _prepare_delegate(context: int, delegate: int) -> int:
    """Replace what the applicant takes; on any error the model stays on the CPU."""
    number = structs.TfLiteDelegate.from_address(delegate).data_ or 0
    applicant = _applicants.get(number)
    if applicant is None:
        structs.report_error(context, "TfLiteGpuDelegate Prepare: the delegate was closed.")
        return TfLiteStatus.DELEGATE_ERROR
    try:
        nodes = applicant.apply(context, _preview(context))
    except BaseException as error:
        applicant.fail(error)
        _log.warning("The model runs on the CPU, because the delegate failed: %s", error)
        return TfLiteStatus.OK
    if not nodes:
        return TfLiteStatus.OK
    array = structs.make_int_array(nodes)
    replace = structs.TfLiteContext.from_address(context).ReplaceNodeSubsetsWithDelegateKernels
    status: int = replace(context, _registration, ctypes.addressof(array), delegate)
    return status


@_callback(structs.INIT)
def _init(context: int, buffer: int, _length: int) -> int:
    """Return the number of the partition's kernel, or 0 after an error."""
    try:
        delegate = structs.TfLiteDelegateParams.from_address(buffer).delegate
        applicant = _applicants[structs.TfLiteDelegate.from_address(delegate or 0).data_ or 0]
        kernel = applicant.take_kernel(_subset(buffer))
        number = next(_numbers)
        _kernels[number] = (kernel, applicant)
    except BaseException as error:
        structs.report_error(context, f"TfLiteGpuDelegate Init: {error}")
        return 0
    return number


@_callback(structs.NODE)
def _prepare(context: int, node: int) -> int:
    """Get a kernel ready for the shapes that its inputs have now."""
    number = structs.TfLiteNode.from_address(node).user_data
    if not number or number not in _kernels:
        structs.report_error(context, "TfLiteGpuDelegate Prepare: delegate is not initialized")
        return TfLiteStatus.ERROR
    kernel, applicant = _kernels[number]
    try:
        held = structs.TfLiteNode.from_address(node)
        kernel.prepare(context, structs.int_array(held.inputs), structs.int_array(held.outputs))
    except BaseException as error:
        applicant.fail(error)
        structs.report_error(context, f"TfLiteGpuDelegate Prepare: {error}")
        return TfLiteStatus.ERROR
    return TfLiteStatus.OK


_USER_DATA = structs.TfLiteNode.user_data.offset  # type: ignore[union-attr]


@_callback(structs.NODE)
def _invoke(context: int, node: int) -> int:
    """Run a kernel. This is the hot path: one dictionary look-up, then the kernel."""
    entry = _kernels[ctypes.c_size_t.from_address(node + _USER_DATA).value]
    try:
        entry[0].invoke(context)
    except BaseException as error:
        entry[1].fail(error)
        structs.report_error(context, f"TfLiteGpuDelegate Invoke: {error}")
        return TfLiteStatus.ERROR
    return TfLiteStatus.OK


@_callback(structs.FREE)
def _free(
    _context: int, user_data: int | None, kernels: dict[int, tuple[Kernel, Applicant]] = _kernels
) -> None:
    """Release a kernel. The table is bound early: at exit the module's names may be gone."""
    try:
        entry = kernels.pop(user_data or 0, None)
        if entry is not None:
            entry[0].close()
    except BaseException as error:
        if _log is not None:
            _log.warning("A partition could not be released cleanly: %s", error)


def _make_registration() -> structs.TfLiteRegistration:
    registration = structs.TfLiteRegistration()
    registration.init = _init
    registration.free = _free
    registration.prepare = _prepare
    registration.invoke = _invoke
    registration.custom_name = _CUSTOM_NAME
    registration.version = 1
    return registration


_registration = _make_registration()

# The runtime keeps their addresses: they must survive the teardown of this module.
for _held in (_prepare_delegate, _init, _prepare, _invoke, _free, _registration, _CUSTOM_NAME):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))


def live_kernels() -> int:
    """Return how many partitions interpreters hold at present."""
    return len(_kernels)


def tensor_shape(tensors: int, index: int) -> tuple[int, ...]:
    """Return the present shape of a tensor."""
    return structs.int_array(tensor_at(tensors, index).dims)


def resize_tensor(context: int, index: int, shape: Sequence[int]) -> None:
    """Give a tensor another shape. Raises OSError when the runtime refuses."""
    held = structs.TfLiteContext.from_address(context)
    address = (held.tensors or 0) + index * ctypes.sizeof(structs.TfLiteTensor)
    status = held.ResizeTensor(context, address, structs.malloc_int_array(shape))
    if status:
        raise OSError(f"The runtime refuses to resize tensor {index} to {list(shape)}.")
