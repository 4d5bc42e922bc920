"""The delegate as the runtime sees it: a C struct, and callbacks that let no exception into C.

The five callbacks live as long as the process, because an interpreter may call `free` after
everything else of litegpu has been dropped. Delegates and partitions are found through numbers
that travel in `TfLiteDelegate.data_` and `TfLiteNode.user_data`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from litegpu.errors import InterpreterError
from litegpu.graph.partition import Subset
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.enums import DelegateFlags, TfLiteStatus
from litegpu.runtime_abi.reader import UPGRADE, tensor_at

_log = logging.getLogger("litegpu")
_CUSTOM_NAME = b"TfLiteGpuDelegateV2"
_numbers = itertools.count(1)


class Kernel(Protocol):
    """What runs in place of a partition."""

    def prepare(self, context: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Get ready for the tensors' present shapes; `inputs` and `outputs` are their numbers."""

    def invoke(self, context: int) -> None:
        """Run on the tensors' present data."""

    def close(self, context: int = 0) -> None:
        """Release everything; `context` is the interpreter's that it served, 0 for none."""


class Applicant(Protocol):
    """What a delegate does when an interpreter applies it."""

    def apply(self, context: int, preview: Callable[[Sequence[int]], list[Subset]]) -> list[int]:
        """Return the nodes to replace; nothing may fail for them afterwards."""

    def take_kernel(self, context: int, subset: Subset) -> Kernel:
        """Return the kernel for a subset that the runtime is about to replace."""

    def settle(self, context: int) -> None:
        """Release the kernels of an interpreter that the runtime did not ask for."""

    def fail(self, error: BaseException) -> None:
        """Remember an error that could not be raised through C."""


class NativeDelegate:
    """Owns the C struct of one delegate."""

    def __init__(self, applicant: Applicant) -> None:
        """Register under a fresh number. The applicant must own this object."""
        # Not a strong reference: partitions keep this object alive, and through the applicant
        # they might keep the interpreter alive that should release them.
        self._applicant = weakref.ref(applicant)
        self._number = next(_numbers)
        self.struct = structs.TfLiteDelegate()
        self.struct.data_ = self._number
        self.struct.Prepare = _prepare_delegate
        # With this flag the runtime asks before it prepares nodes (so that custom ops without a
        # CPU kernel can be taken), and graphs with dynamic tensors are not refused as a whole.
        self.struct.flags = DelegateFlags.ALLOW_DYNAMIC_TENSORS
        _natives[self._number] = self

    @property
    def address(self) -> int:
        """Address of the `TfLiteDelegate`."""
        return ctypes.addressof(self.struct)

    @property
    def applicant(self) -> Applicant:
        """The delegate. Raises InterpreterError when it is gone."""
        found = self._applicant()
        if found is None:
            raise InterpreterError(
                "The delegate is gone, but an interpreter still uses it. "
                "Keep the GpuDelegate for as long as the interpreter."
            )
        return found


_natives: weakref.WeakValueDictionary[int, NativeDelegate] = weakref.WeakValueDictionary()
_kernels: dict[int, tuple[Kernel, NativeDelegate]] = {}


def _native(delegate: int | None) -> NativeDelegate:
    """Return the owner of the `TfLiteDelegate` at an address."""
    return _natives[structs.TfLiteDelegate.from_address(delegate or 0).data_ or 0]


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


_F = TypeVar("_F", bound=Callable[..., Any])


def _callback(prototype: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Return a decorator that makes a function callable from C, keeping its type."""
    return prototype


def _report(
    context: int, moment: str, error: BaseException, native: NativeDelegate | None = None
) -> None:
    """Hand an error that may not cross into C to the delegate and to the runtime."""
    # Not even a second error, such as one while the first is shown, may cross.
    with contextlib.suppress(BaseException):
        text = str(error) or type(error).__name__
        structs.report_error(context, f"TfLiteGpuDelegate {moment}: {text}")
    with contextlib.suppress(BaseException):
        if native is not None:
            native.applicant.fail(error)


def _warn(
    text: str,
    error: BaseException,
    log: logging.Logger = _log,
    suppress: type[contextlib.suppress] = contextlib.suppress,
) -> None:
    """Log an error; a log handler that raises must not do so through C.

    What no file could hold, such as half of a surrogate pair, is replaced.
    """
    with suppress(BaseException):
        shown = str(error) or type(error).__name__
        log.warning(text, shown.encode("utf-8", "replace").decode("utf-8"))


@_callback(structs.DELEGATE_PREPARE)
def _prepare_delegate(context: int, delegate: int) -> int:
    """Replace what the applicant takes; on any error before that the model stays on the CPU."""
    applicant = None
    try:
        applicant = _native(delegate).applicant
        return _apply(context, delegate, applicant)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            if applicant is not None:
                applicant.fail(error)
        _warn("The model runs on the CPU, because the delegate failed: %s", error)
        return TfLiteStatus.OK


def _apply(context: int, delegate: int, applicant: Applicant) -> int:
    try:
        nodes = structs.make_int_array(applicant.apply(context, _preview(context)))
        if len(nodes) == 1:  # nothing but the count
            return TfLiteStatus.OK
        replace = structs.TfLiteContext.from_address(context).ReplaceNodeSubsetsWithDelegateKernels
        status: int = replace(context, _registration, ctypes.addressof(nodes), delegate)
        return status
    finally:
        applicant.settle(context)


@_callback(structs.INIT)
def _init(context: int, buffer: int, _length: int) -> int:
    """Return the number of the partition's kernel, or 0 after an error."""
    native = None
    try:
        native = _native(structs.TfLiteDelegateParams.from_address(buffer).delegate)
        kernel = native.applicant.take_kernel(context, _subset(buffer))
        number = next(_numbers)
        _kernels[number] = (kernel, native)
    except BaseException as error:
        _report(context, "Init", error, native)
        return 0
    return number


@_callback(structs.NODE)
def _prepare(context: int, node: int) -> int:
    """Get a kernel ready for the shapes that its inputs have now."""
    native = None
    try:
        held = structs.TfLiteNode.from_address(node)
        entry = _kernels.get(held.user_data or 0)
        if entry is None:
            # In words that users of TensorFlow Lite know; the cause was reported before.
            raise InterpreterError("delegate is not initialized")
        kernel, native = entry
        kernel.prepare(context, structs.int_array(held.inputs), structs.int_array(held.outputs))
    except BaseException as error:
        _report(context, "Prepare", error, native)
        return TfLiteStatus.ERROR
    return TfLiteStatus.OK


_USER_DATA = structs.TfLiteNode.user_data.offset  # type: ignore[union-attr]


@_callback(structs.NODE)
def _invoke(context: int, node: int) -> int:
    """Run a kernel. This is the hot path: one dictionary look-up, then the kernel."""
    native = None
    try:
        kernel, native = _kernels[_read_size(node + _USER_DATA).value]
        kernel.invoke(context)
    except BaseException as error:
        _report(context, "Invoke", error, native)
        return TfLiteStatus.ERROR
    return TfLiteStatus.OK


_read_size = ctypes.c_size_t.from_address


@_callback(structs.FREE)
def _free(
    context: int,
    user_data: int | None,
    kernels: dict[int, tuple[Kernel, NativeDelegate]] = _kernels,
    warn: Callable[[str, BaseException], None] = _warn,
) -> None:
    """Release a kernel. What it needs is bound early: at exit the module's names may be gone."""
    try:
        entry = kernels.pop(user_data or 0, None)
        if entry is not None:
            entry[0].close(context)
    except BaseException as error:
        warn("A partition could not be released cleanly: %s", error)


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
    """Give a tensor another shape. Raises InterpreterError when the runtime refuses."""
    held = structs.TfLiteContext.from_address(context)
    address = (held.tensors or 0) + index * ctypes.sizeof(structs.TfLiteTensor)
    status = held.ResizeTensor(context, address, structs.malloc_int_array(shape))
    if status:
        raise InterpreterError(
            f"The runtime refuses to resize tensor {index} to {list(shape)} (status {status}). "
            "Use a smaller input."
        )
