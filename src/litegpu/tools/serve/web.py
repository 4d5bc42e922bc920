"""Processes requests and answers: limits, timeouts, disconnects, and errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from litegpu.errors import (
    BindingError,
    CompiledModelError,
    DeviceMemoryError,
    FileError,
    InvokeTimeoutError,
    LanguageModelError,
    LitegpuError,
    MissingDependencyError,
    RequestError,
)
from litegpu.tools.serve.metrics import Metrics

_log = logging.getLogger("litegpu")
_Result = TypeVar("_Result")
_PART = 1 << 16
"""Maximum size, in bytes, of a part of an answer that is sent at once."""
JSON_TYPE = "application/json"
_GONE = 499
"""The status of a request in the metrics if its client has disconnected."""
_STATUSES: tuple[tuple[type[LitegpuError], int], ...] = (
    (MissingDependencyError, 501),
    (InvokeTimeoutError, 504),
    (DeviceMemoryError, 503),
    (CompiledModelError, 400),
    (LanguageModelError, 400),
    (FileError, 400),
    (BindingError, 400),
)
"""HTTP status by class of exception; other exceptions have the status 500."""


class Model(ABC):
    """The base class of served models."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata for the v2 protocol, without its name and versions."""

    @abstractmethod
    def close(self) -> None:
        """Finish the running requests, and release the model."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server."""

    queue: int
    """Maximum number of pending requests (waiting or running) per model."""
    body: int
    """Maximum size of a request in bytes."""
    memory: int
    """Maximum total size of all pending requests in bytes."""
    timeout: float
    """Timeout in seconds for receiving and answering a request, and for sending a part."""


@dataclass
class Gate:
    """Admits requests up to the limits."""

    limits: Limits
    metrics: Metrics
    closing: bool = False
    """Whether the server is shutting down."""
    _pending: Counter[Model] = field(default_factory=Counter)
    _bytes: int = 0

    @contextlib.contextmanager
    def admitted(self, model: Model) -> Iterator[None]:
        """Count a request of a model as pending. Raises RequestError beyond the limit."""
        if self.closing:
            raise closing()
        if self._pending[model] >= self.limits.queue:
            raise RequestError(
                f"{self.limits.queue} requests of the model '{model.name}' are waiting already "
                "(--max_queue). Try again later.",
                429,
            )
        self._pending[model] += 1
        try:
            with self.metrics.pending(model.name, model.version):
                yield
        finally:
            self._pending[model] -= 1

    @contextlib.contextmanager
    def memory(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes of a request in memory until the end of the context.

        The function raises RequestError if the total size of requests would exceed the limit.
        """
        own = 0

        def add(count: int) -> None:
            nonlocal own
            if self._bytes + count > self.limits.memory:
                raise RequestError(
                    f"The waiting requests have {self.limits.memory} bytes already "
                    "(--max_memory_mb). Try again later.",
                    503,
                )
            self._bytes += count
            own += count

        try:
            yield add
        finally:
            self._bytes -= own


def closing() -> RequestError:
    """Return the error for requests that the server rejects during shutdown."""
    return RequestError("The server is shutting down. Send the request to another server.", 503)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: a complete body, or a stream of parts."""

    body: bytes | AsyncGenerator[bytes, None]
    status: int = 200
    type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(found: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(json.dumps(found, allow_nan=False).encode(), status, headers=headers or {})


def status_of(error: Exception) -> int:
    """Return the HTTP status for an exception."""
    if isinstance(error, RequestError):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def message_of(error: Exception) -> str:
    """Return the error message for clients; details of unexpected exceptions are only logged."""
    if isinstance(error, LitegpuError):
        return str(error)
    _log.error("A request failed.", exc_info=error)
    return "The server failed; its log has the error."


Handler = Callable[[Request, contextlib.ExitStack], Awaitable[Answer]]
"""A handler answers a request; contexts on the stack end after the answer has been sent."""


ErrorBody = Callable[[Exception, int, str], Any]
"""A function that returns the JSON of an error with a status and a message."""


class Endpoint:
    """An ASGI application for one handler, whose exceptions become error answers."""

    def __init__(self, handler: Handler, error_body: ErrorBody, limits: Limits) -> None:
        self._handler, self._error_body, self._limits = handler, error_body, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises no exception, except during the server's shutdown."""
        request = Request(scope, receive)
        with contextlib.ExitStack() as stack:
            try:
                answer = await self._handler(request, stack)
            except ClientDisconnect:
                self._count(request, _GONE)
                return
            except asyncio.CancelledError:  # by the server, when its time to end is over
                answer = self._failed(closing())
            except Exception as error:
                answer = self._failed(error)
            self._count(request, answer.status)
            with contextlib.suppress(ClientDisconnect):
                await _send(request, send, answer, self._limits.timeout)

    def _failed(self, error: Exception) -> Answer:
        status = status_of(error)
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        return json_answer(self._error_body(error, status, message_of(error)), status, headers)

    @staticmethod
    def _count(request: Request, status: int) -> None:
        counting: Callable[[int], None] | None = getattr(request.state, "answered", None)
        if counting is not None:
            counting(status)


async def _send(request: Request, send: Send, answer: Answer, timeout: float) -> None:
    """Send an answer in parts; a part waits until the client has read most earlier parts."""

    async def write(**message: Any) -> None:
        try:
            await asyncio.wait_for(send(message), timeout)
        except asyncio.TimeoutError:  # the client does not read
            raise ClientDisconnect from None

    async def write_part(part: bytes, more: bool) -> None:
        await write(type="http.response.body", body=part, more_body=more)

    headers = {"content-type": answer.type, **answer.headers}
    if isinstance(answer.body, bytes):
        headers["content-length"] = str(len(answer.body))
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await write(type="http.response.start", status=answer.status, headers=encoded)
    if isinstance(answer.body, bytes):
        for begin in range(0, len(answer.body), _PART):
            await write_part(answer.body[begin : begin + _PART], begin + _PART < len(answer.body))
        return
    async with contextlib.aclosing(answer.body) as parts:
        while part := await unless_gone(request, anext(parts, b"")):
            await write_part(part, True)
    await write_part(b"", False)


async def unless_gone(
    request: Request, work: Awaitable[_Result], timeout: float | None = None
) -> _Result:
    """Await `work`, and cancel it if the client disconnects or after `timeout` seconds.

    The body of the request must have been read before. Raises ClientDisconnect after a disconnect,
    RequestError after the timeout, and the exceptions of `work`.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnect
        raise RequestError(f"The request was not answered within {timeout:g} seconds.", 504)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _gone(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def body_of(request: Request, gate: Gate, stack: contextlib.ExitStack) -> memoryview:
    """Return the body of a request.

    Raises RequestError for a body that is too large, encoded or too slow, and ClientDisconnect.
    """
    limits = gate.limits
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise RequestError(
            f"The body has the content-encoding '{encoding[:40]}'. Send the body without an "
            "encoding.",
            415,
        )
    stated = request.headers.get("content-length", "")
    if stated.isdecimal():
        _check_size(int(stated), limits)
    add = stack.enter_context(gate.memory())
    try:
        return await asyncio.wait_for(_body(request, limits, add), limits.timeout)
    except asyncio.TimeoutError:
        raise RequestError(
            f"The body did not arrive within {limits.timeout:g} seconds.", 408
        ) from None


async def _body(request: Request, limits: Limits, add: Callable[[int], None]) -> memoryview:
    body = bytearray()
    async for part in request.stream():
        _check_size(len(body) + len(part), limits)
        add(len(part))
        body += part
    return memoryview(body)


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.body:
        raise RequestError(
            f"The body has more than {limits.body} bytes (--max_body_mb). Send less at a time.", 413
        )
