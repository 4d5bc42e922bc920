"""KServe's inference protocol, version 2, over gRPC.

The module builds the message classes from a table; the wire format is that of KServe's `.proto`
file.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from litegpu.errors import OptionsError, RequestError
from litegpu.tools.console import note
from litegpu.tools.serve.models import Models
from litegpu.tools.serve.served import GraphModel
from litegpu.tools.serve.tensors import BYTES, Call, call_of, datatype, raw_bytes
from litegpu.tools.serve.v2 import EXTENSIONS, graph_model
from litegpu.tools.serve.web import Gate, Model, message_of, status_of
from litegpu.version import __version__

_SERVICE = "inference.GRPCInferenceService"
_TYPES = descriptor_pb2.FieldDescriptorProto
_MESSAGES: Mapping[str, Sequence[str]] = {
    "Empty": (),
    "ServerLiveResponse": ("bool live",),
    "ServerReadyResponse": ("bool ready",),
    "ServerMetadataResponse": ("string name", "string version", "string* extensions"),
    "ModelRequest": ("string name", "string version"),
    "ModelReadyResponse": ("bool ready",),
    "TensorMetadata": ("string name", "string datatype", "int64* shape"),
    "ModelMetadataResponse": (
        *("string name", "string* versions", "string platform"),
        *("TensorMetadata* inputs", "TensorMetadata* outputs"),
    ),
    "InferParameter": (
        *("bool? bool_param", "int64? int64_param", "string? string_param"),
        *("double? double_param", "uint64? uint64_param"),
    ),
    "Parameter": ("string key", "InferParameter value"),
    "InferTensorContents": (
        *("bool* bool_contents", "int32* int_contents", "int64* int64_contents"),
        *("uint32* uint_contents", "uint64* uint64_contents", "float* fp32_contents"),
        *("double* fp64_contents", "bytes* bytes_contents"),
    ),
    "InferTensor": (
        *("string name", "string datatype", "int64* shape", "Parameter* parameters"),
        "InferTensorContents contents",
    ),
    "InferRequestedOutputTensor": ("string name", "Parameter* parameters"),
    "ModelInferRequest": (
        *("string model_name", "string model_version", "string id", "Parameter* parameters"),
        *("InferTensor* inputs", "InferRequestedOutputTensor* outputs"),
        "bytes* raw_input_contents",
    ),
    "ModelInferResponse": (
        *("string model_name", "string model_version", "string id", "Parameter* parameters"),
        *("InferTensor* outputs", "bytes* raw_output_contents"),
    ),
}
"""The fields of each message, numbered from 1; * marks repeated fields, ? fields of a oneof."""
_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_CANCELLED = 499


def _classes() -> dict[str, Any]:
    """Return the class of each message, created in a separate descriptor pool."""
    file = descriptor_pb2.FileDescriptorProto(
        name="litegpu/kserve.proto", package="inference", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields, 1):
            kind, field_name = text.split()
            _add_field(message, number, kind, field_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"inference.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


def _add_field(message: Any, number: int, kind: str, name: str) -> None:
    scalar = getattr(_TYPES, f"TYPE_{kind.rstrip('*?').upper()}", None)
    field = message.field.add(
        name=name,
        number=number,
        type=_TYPES.TYPE_MESSAGE if scalar is None else scalar,
        label=_TYPES.LABEL_REPEATED if kind.endswith("*") else _TYPES.LABEL_OPTIONAL,
    )
    if scalar is None:
        field.type_name = f".inference.{kind.rstrip('*?')}"
    if kind.endswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0


CLASSES = _classes()
_Method = Callable[[Any, Any], Awaitable[Any]]


class GrpcServer:
    """A gRPC server of KServe's protocol on a separate port."""

    def __init__(self, models: Sequence[Model], gate: Gate, host: str, port: int) -> None:
        self._models, self._gate = Models(models), gate
        self._host, self._port = host, port
        self._server: Any = None

    async def start(self) -> None:
        """Listen. Raises OptionsError if the address cannot be used."""
        most = self._gate.limits.body
        sizes = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", -1)]
        self._server = grpc.aio.server(options=[*sizes, ("grpc.so_reuseport", 0)])
        handler = grpc.method_handlers_generic_handler(_SERVICE, self._handlers())
        self._server.add_generic_rpc_handlers((handler,))
        shown = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port = self._server.add_insecure_port(f"{shown}:{self._port}")
        except RuntimeError as error:
            raise OptionsError(
                f"--host={self._host} --grpc_port={self._port}: the address cannot be used. Give "
                "another one; --grpc_port=0 takes any free port."
            ) from error
        await self._server.start()
        note(f"serving gRPC at {shown}:{port}")

    async def stop(self, seconds: float) -> None:
        """Reject new calls, and wait at most this many seconds for pending ones."""
        if self._server is not None:
            await self._server.stop(seconds)

    def _handlers(self) -> dict[str, Any]:
        methods: Mapping[str, tuple[_Method, str, str]] = {
            "ServerLive": (self._live, "Empty", "ServerLiveResponse"),
            "ServerReady": (self._ready, "Empty", "ServerReadyResponse"),
            "ServerMetadata": (self._server_metadata, "Empty", "ServerMetadataResponse"),
            "ModelReady": (self._model_ready, "ModelRequest", "ModelReadyResponse"),
            "ModelMetadata": (self._metadata, "ModelRequest", "ModelMetadataResponse"),
            "ModelInfer": (self._infer, "ModelInferRequest", "ModelInferResponse"),
        }
        return {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(method),
                request_deserializer=CLASSES[request].FromString,
                response_serializer=CLASSES[answer].SerializeToString,
            )
            for name, (method, request, answer) in methods.items()
        }

    async def _live(self, _: Any, __: Any) -> Any:
        return CLASSES["ServerLiveResponse"](live=True)

    async def _ready(self, _: Any, __: Any) -> Any:
        return CLASSES["ServerReadyResponse"](ready=not self._gate.closing)

    async def _server_metadata(self, _: Any, __: Any) -> Any:
        found = {"name": "litegpu", "version": __version__, "extensions": EXTENSIONS}
        return CLASSES["ServerMetadataResponse"](**found)

    async def _model_ready(self, request: Any, _: Any) -> Any:
        self._models.find(request.name, request.version or None)
        return CLASSES["ModelReadyResponse"](ready=not self._gate.closing)

    async def _metadata(self, request: Any, _: Any) -> Any:
        model = self._models.find(request.name, request.version or None)
        found = model.metadata()
        return CLASSES["ModelMetadataResponse"](
            name=model.name,
            versions=[*self._models.versions(model.name)],
            platform=found["platform"],
            inputs=found["inputs"],
            outputs=found["outputs"],
        )

    async def _infer(self, request: Any, _: Any) -> Any:
        model = graph_model(self._models.find(request.model_name, request.model_version or None))
        gate, status = self._gate, _CANCELLED
        try:
            with ExitStack() as stack:
                stack.enter_context(gate.admitted(model))
                stack.enter_context(gate.memory())(request.ByteSize())
                answer = await _within(self._answer(model, request), gate.limits.timeout)
            status = 200
        except Exception as error:
            status = status_of(error)
            raise
        finally:
            gate.metrics.answered(model.name, model.version, status)
        return answer

    async def _answer(self, model: GraphModel, request: Any) -> Any:
        call = await asyncio.to_thread(_call, request)
        wanted, found = await model.infer(call)
        arrays = [found[each.name] for each in wanted]
        outputs = [
            {"name": each.name, "datatype": datatype(array.dtype), "shape": array.shape}
            for each, array in zip(wanted, arrays, strict=True)
        ]
        return CLASSES["ModelInferResponse"](
            model_name=model.name,
            model_version=model.version,
            id=request.id,
            outputs=outputs,
            raw_output_contents=[*map(raw_bytes, arrays)],
        )


async def _within(work: Awaitable[Any], seconds: float) -> Any:
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        raise RequestError(
            f"The request was not answered within {seconds:g} seconds.", 504
        ) from error


def _answering(method: _Method) -> _Method:
    """Wrap a method so that exceptions become gRPC statuses."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except Exception as error:
            code = _CODES.get(status_of(error), grpc.StatusCode.INTERNAL)
            return await context.abort(code, message_of(error))

    return answer


def _call(request: Any) -> Call:
    """Convert a request message to a Call. Raises RequestError."""
    raw = [*request.raw_input_contents]
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            f"The request has {len(request.inputs)} inputs, and {len(raw)} raw_input_contents. "
            "Give one for each input, or none."
        )
    inputs, data = [], []
    for number, tensor in enumerate(request.inputs):
        found = _described(tensor) | {"datatype": tensor.datatype, "shape": [*tensor.shape]}
        if raw or tensor.datatype == BYTES:
            contents = raw[number] if raw else _prefixed(tensor.contents.bytes_contents)
            found["parameters"]["binary_data_size"] = len(contents)
            data.append(contents)
        else:
            field = _CONTENTS.get(tensor.datatype)
            found["data"] = [] if field is None else [*getattr(tensor.contents, field)]
        inputs.append(found)
    found = {
        "id": request.id or None,
        "parameters": _parameters(request),
        "inputs": inputs,
        "outputs": [*map(_described, request.outputs)] or None,
    }
    return call_of(found, memoryview(b"".join(data)))


def _described(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "parameters": _parameters(tensor)}


def _parameters(message: Any) -> dict[str, Any]:
    found = {}
    for each in message.parameters:
        choice = each.value.WhichOneof("choice")
        found[each.key] = None if choice is None else getattr(each.value, choice)
    return found


def _prefixed(texts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in texts)
