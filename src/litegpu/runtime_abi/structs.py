"""The C structures and callback prototypes of the runtime's delegate interface.

Fields have their C names. Pointers to arrays, tensors and nodes are plain addresses (`int | None`).
The helpers at the end of this module read the data at an address. litegpu reads only fields that
exist since tflite-runtime 2.14. `TfLiteRegistration` has later fields, see its docstring.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import struct
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_size_t, c_void_p
from typing import Annotated, Any, TypeVar

from litegpu.errors import DeviceMemoryError

NO_BUFFER_HANDLE = -1
"""`TfLiteTensor.buffer_handle` of a tensor that no delegate owns."""
REPORT_LIMIT = 1023
"""Number of bytes that the Python interpreter's error reporter accepts per call.

The error reporter truncates longer texts. A text that is truncated inside a character raises
UnicodeDecodeError.
"""

Int32 = Annotated[int, c_int32]
Int64 = Annotated[int, ctypes.c_int64]
UInt64 = Annotated[int, ctypes.c_uint64]
Size = Annotated[int, c_size_t]
Float = Annotated[float, c_float]
Bool = Annotated[bool, c_bool]
Address = Annotated[int | None, c_void_p]
Text = Annotated[bytes | None, c_char_p]

_S = TypeVar("_S", bound=type[ctypes.Structure])


def _c_struct(cls: _S) -> _S:
    """Make the annotations of `cls` its C fields, so that each field is declared once."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = inspect.get_annotations(cls)
    cls._fields_ = [(n, getattr(hints[n], "__metadata__", (hints[n],))[0]) for n in names]
    return cls


CONTEXT_CALLBACK = CFUNCTYPE(c_int, c_size_t)
"""The runtime's callbacks, declared with their first argument only, the context."""
INIT = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
"""`init(context, buffer, length) -> user_data`."""
FREE = CFUNCTYPE(None, c_void_p, c_void_p)
"""`free(context, user_data)`."""
NODE = CFUNCTYPE(c_int, c_void_p, c_void_p)
"""`prepare(context, node)` and `invoke(context, node)`, both -> status."""
DELEGATE_PREPARE = CFUNCTYPE(c_int, c_void_p, c_void_p)
"""`Prepare(context, delegate) -> status`."""
GET_EXECUTION_PLAN = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))
RESIZE_TENSOR = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
# The C function is variadic. Called with the format alone, its arguments are passed like those of
# an ordinary function on every platform, including Apple's arm64.
REPORT_ERROR = CFUNCTYPE(None, c_void_p, c_char_p)
ADD_TENSORS = CFUNCTYPE(c_int, c_void_p, c_int, POINTER(c_int))
GET_NODE_AND_REGISTRATION = CFUNCTYPE(c_int, c_void_p, c_int, POINTER(c_void_p), POINTER(c_void_p))
PREVIEW_DELEGATE_PARTITIONING = CFUNCTYPE(
    c_int, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_int)
)
ACQUIRE_SUBGRAPH_CONTEXT = CFUNCTYPE(c_int, c_void_p, c_int, POINTER(c_void_p))
RELEASE_SUBGRAPH_CONTEXT = CFUNCTYPE(c_int, c_void_p, c_int)


@_c_struct
class TfLiteQuantizationParams(ctypes.Structure):
    """Per-tensor scale and zero point of a tensor (the older of the two structs)."""

    scale: Float
    zero_point: Int32


@_c_struct
class TfLiteQuantization(ctypes.Structure):
    """A `QuantizationType` and the address of its parameters."""

    type: Int32
    params: Address


@_c_struct
class TfLiteAffineQuantization(ctypes.Structure):
    """Scales (float array) and zero points (int array) along `quantized_dimension`."""

    scale: Address
    zero_point: Address
    quantized_dimension: Int32


@_c_struct
class TfLiteBlockwiseQuantization(ctypes.Structure):
    """The tensors with scales and zero points, and the elements of a row that share a scale."""

    scale: Int32
    zero_point: Int32
    blocksize: Int32
    quantized_dimension: Int32


@_c_struct
class TfLiteDimensionMetadata(ctypes.Structure):
    """One dimension of a sparse tensor; the two arrays are set for `SPARSE_CSR` only."""

    format: Int32
    dense_size: Int32
    array_segments: Address
    array_indices: Address


@_c_struct
class TfLiteSparsity(ctypes.Structure):
    """Layout of a sparse constant; `dim_metadata` is an array of `TfLiteDimensionMetadata`."""

    traversal_order: Address
    block_map: Address
    dim_metadata: Address
    dim_metadata_size: Int32


@_c_struct
class TfLiteTensor(ctypes.Structure):
    """One tensor of the runtime; `data` is the address of its elements, `bytes` their size."""

    type: Int32
    data: Address
    dims: Address
    params: TfLiteQuantizationParams
    allocation_type: Int32
    bytes: Size
    allocation: Address
    name: Text
    delegate: Address
    buffer_handle: Int32
    data_is_stale: Bool
    is_variable: Bool
    quantization: TfLiteQuantization
    sparsity: Address
    dims_signature: Address


@_c_struct
class TfLiteNode(ctypes.Structure):
    """One operation of the runtime; the first four fields are int arrays of tensor indices."""

    inputs: Address
    outputs: Address
    intermediates: Address
    temporaries: Address
    user_data: Address
    builtin_data: Address
    custom_initial_data: Address
    custom_initial_data_size: Int32
    delegate: Address
    might_have_side_effect: Bool


@_c_struct
class TfLiteRegistration(ctypes.Structure):
    """The callbacks and the identity of an op.

    In runtimes before 2.15, the struct ends at `async_kernel`. Passing the longer struct by value
    to these runtimes is harmless, because the callee reads only the fields that it knows. Reading
    `inplace_operator` from a registration that such a runtime owns is an out-of-bounds read.
    """

    init: Annotated[Callable[..., Any], INIT]
    free: Annotated[Callable[..., Any], FREE]
    prepare: Annotated[Callable[..., Any], NODE]
    invoke: Annotated[Callable[..., Any], NODE]
    profiling_string: Address
    builtin_code: Int32
    custom_name: Text
    version: Int32
    registration_external: Address
    async_kernel: Address
    inplace_operator: UInt64


REPLACE_NODE_SUBSETS = CFUNCTYPE(c_int, c_void_p, TfLiteRegistration, c_void_p, c_void_p)


@_c_struct
class TfLiteContext(ctypes.Structure):
    """The runtime's side of the interface.

    After the delegate's Prepare has returned, the runtime replaces several of these functions by
    functions that fail. Callers must therefore read a function from the struct at each call, and
    never store the function.
    """

    tensors_size: Size
    GetExecutionPlan: Annotated[Callable[..., int], GET_EXECUTION_PLAN]
    tensors: Address
    impl_: Address
    ResizeTensor: Annotated[Callable[..., int], RESIZE_TENSOR]
    ReportError: Annotated[Callable[..., None], REPORT_ERROR]
    AddTensors: Annotated[Callable[..., int], ADD_TENSORS]
    GetNodeAndRegistration: Annotated[Callable[..., int], GET_NODE_AND_REGISTRATION]
    ReplaceNodeSubsetsWithDelegateKernels: Annotated[Callable[..., int], REPLACE_NODE_SUBSETS]
    recommended_num_threads: Int32
    GetExternalContext: Address
    SetExternalContext: Address
    allow_fp32_relax_to_fp16: Bool
    profiler: Address
    AllocatePersistentBuffer: Address
    AllocateBufferForEval: Address
    RequestScratchBufferInArena: Address
    GetScratchBuffer: Address
    ResizeTensorExplicit: Address
    PreviewDelegatePartitioning: Annotated[Callable[..., int], PREVIEW_DELEGATE_PARTITIONING]
    GetTensor: Address
    GetEvalTensor: Address
    GetModelMetadata: Address
    AcquireSubgraphContext: Annotated[Callable[..., int], ACQUIRE_SUBGRAPH_CONTEXT]
    ReleaseSubgraphContext: Annotated[Callable[..., int], RELEASE_SUBGRAPH_CONTEXT]


@_c_struct
class TfLiteDelegate(ctypes.Structure):
    """The runtime's struct of a delegate; `opaque_delegate_builder` must stay null."""

    data_: Address
    Prepare: Annotated[Callable[..., int], DELEGATE_PREPARE]
    CopyFromBufferHandle: Address
    CopyToBufferHandle: Address
    FreeBufferHandle: Address
    flags: Int64
    opaque_delegate_builder: Address


@_c_struct
class TfLiteDelegateParams(ctypes.Structure):
    """One partition: int arrays of its nodes, and of its input and output tensors."""

    delegate: Address
    nodes_to_replace: Address
    input_tensors: Address
    output_tensors: Address


def int_array_view(address: int | None) -> ctypes.Array[c_int32]:
    """Return the elements of the `TfLiteIntArray` at `address`, writable in place.

    For a null `address`, the result is an empty array.
    """
    if not address:
        return (c_int32 * 0)()
    count = c_int32.from_address(address).value
    return (c_int32 * count).from_address(address + ctypes.sizeof(c_int32))


def int_array(address: int | None) -> tuple[int, ...]:
    """Return a copy of the `TfLiteIntArray` at `address`; () when it is null."""
    return _elements(address, "i")


def float_array(address: int | None) -> tuple[float, ...]:
    """Return a copy of the `TfLiteFloatArray` at `address`; () when it is null."""
    return _elements(address, "f")


def _elements(address: int | None, kind: str) -> tuple[Any, ...]:
    """Return the elements of an array of 4-byte elements; fast, because arrays may be long."""
    if not address:
        return ()
    count = c_int32.from_address(address).value
    elements = ctypes.string_at(address + ctypes.sizeof(c_int32), count * ctypes.sizeof(c_int32))
    return struct.unpack(f"={count}{kind}", elements)


def make_int_array(values: Iterable[int]) -> ctypes.Array[c_int32]:
    """Return a `TfLiteIntArray` of `values`, valid as long as the returned object exists.

    Pass `ctypes.addressof(array)` to the runtime.
    """
    items = tuple(values)
    return (c_int32 * (len(items) + 1))(len(items), *items)


def malloc_int_array(values: Iterable[int]) -> int:
    """Return the address of a `TfLiteIntArray` that the runtime may own and free.

    Raises DeviceMemoryError if the C library has no free memory.
    """
    array = make_int_array(values)
    size = ctypes.sizeof(array)
    address: int | None = _c_library().malloc(size)
    if not address:
        raise DeviceMemoryError(
            f"the C library could not allocate {size} bytes; close other programs and try again"
        )
    ctypes.memmove(address, array, size)
    return address


def free_array(address: int | None) -> None:
    """Free an array that the runtime or `malloc_int_array` allocated; null is allowed."""
    _c_library().free(address)


@functools.cache
def _c_library() -> ctypes.CDLL:
    # The runtime on Windows may link its C library statically; both copies allocate from the
    # process heap, so one can free what the other allocates.
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    library.malloc.argtypes = (c_size_t,)
    library.malloc.restype = c_void_p
    library.free.argtypes = (c_void_p,)
    library.free.restype = None
    return library


def report_error(context: int, text: str) -> None:
    """Pass `text` to the error reporter of the `TfLiteContext` at address `context`.

    The function passes a long text in several calls; the Python interpreter's reporter joins the
    parts.
    """
    for piece in _pieces(text.encode("utf-8", "replace")):
        message = piece.replace(b"%", b"%%")
        TfLiteContext.from_address(context).ReportError(context, message)


def _pieces(data: bytes) -> Iterator[bytes]:
    while data:
        # Decoding drops a character that the limit splits; the next piece starts with it.
        piece = data[:REPORT_LIMIT].decode("utf-8", "ignore").encode("utf-8")
        yield piece
        data = data[len(piece) :]


_silent = REPORT_ERROR(lambda _context, _text: None)
UNHEARD: int = ctypes.cast(_silent, c_void_p).value or 0
"""The address of an error reporter that discards all texts."""


@contextlib.contextmanager
def unheard(context: int) -> Iterator[None]:
    """Discard errors that the runtime reports for the `TfLiteContext` at address `context`.

    Their texts would be printed, or become part of the next error.
    """
    report = c_void_p.from_address(context + TfLiteContext.ReportError.offset)  # type: ignore[attr-defined]
    reporter, report.value = report.value, UNHEARD
    try:
        yield
    finally:
        report.value = reporter
