"""The web application of `litegpu serve`, and the server that runs the application."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from litegpu import config
from litegpu.errors import OptionsError
from litegpu.tools.serve import v1, v2
from litegpu.tools.serve.language import ServedLanguageModel
from litegpu.tools.serve.metrics import CONTENT_TYPE, Metrics
from litegpu.tools.serve.models import Models
from litegpu.tools.serve.v1 import V1
from litegpu.tools.serve.v2 import V2
from litegpu.tools.serve.web import Answer, Endpoint, Gate, Limits, Model, json_answer

_KEEP_ALIVE = 75
"""Seconds until the server closes an idle connection; clients reuse connections for about 60."""
_LAST_ANSWERS = 1.0
"""Maximum seconds for which open connections get answers after the server has begun to end."""
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Address:
    """The address and the connection limit of a server."""

    host: str
    port: int
    connections: int
    drain: int
    """Seconds that the server waits for pending requests after SIGTERM."""


def application(models: Sequence[Model], gate: Gate) -> Starlette:
    """Return the web application that serves these models."""

    async def metrics(_: Request, __: ExitStack) -> Answer:
        return Answer(gate.metrics.text(), type=CONTENT_TYPE)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path[:200]
        message = (
            f"{request.method} {path}: {error.detail}. The paths /v2 and /v1/models list what "
            "this server offers."
        )
        style = v1.error_body if path.startswith("/v1") else v2.error_body
        found = json_answer(style(error, error.status_code, message), error.status_code)
        return Response(found.body, found.status, error.headers, found.type)

    language_models = [each for each in models if isinstance(each, ServedLanguageModel)]
    routes = [
        *V2(Models(models), gate).routes(),
        *V1(Models(language_models), gate).routes(),
        Route("/metrics", Endpoint(metrics, v2.error_body, gate.limits), methods=["GET"]),
    ]
    handlers: Any = {404: unknown, 405: unknown}
    return Starlette(routes=routes, exception_handlers=handlers)


class Companion(Protocol):
    """A server for another protocol that runs in the same event loop."""

    async def start(self) -> None:
        """Listen."""

    async def stop(self, seconds: float) -> None:
        """Reject new requests, and wait at most this many seconds for pending ones."""


class _Server(uvicorn.Server):
    """An HTTP server that notifies its gate at shutdown, and has a companion server."""

    def __init__(
        self, settings: uvicorn.Config, gate: Gate, companion: Companion | None, drain: int
    ) -> None:
        super().__init__(settings)
        self._gate, self._companion, self._drain = gate, companion, drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Raises OptionsError if the companion server cannot listen."""
        if self._companion is not None:
            await self._companion.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Reject new requests, and wait for pending requests."""
        self._gate.closing = True
        stopping = [self._end(sockets)]
        if self._companion is not None:
            stopping.append(self._companion.stop(self._drain))
        await asyncio.gather(*stopping)

    async def _end(self, sockets: list[socket.socket] | None) -> None:
        """Listen no longer, and close each connection after its next answer, or after a second.

        A client may be sending a request on an open connection, and would lose the answer if the
        server closed the connection at once.
        """
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        clock = asyncio.get_running_loop().time
        end = clock() + min(_LAST_ANSWERS, self._drain)
        while self.server_state.connections and clock() < end:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def _closing_connections(app: ASGIApp, gate: Gate) -> ASGIApp:
    """Return an application whose answers close their connections once the server ends."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_closing(message: Message) -> None:
            if gate.closing and message["type"] == "http.response.start":
                headers = [*message["headers"], (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await app(scope, receive, send_closing)

    return answer


def bound(address: Address) -> socket.socket:
    """Return a socket that is bound to an address. Raises OptionsError."""
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise OptionsError(
            f"--host={address.host} --port={address.port}: the address cannot be used: {why}. "
            "Give another one; --port=0 takes any free port."
        ) from error


def run(
    app: Any,
    gate: Gate,
    address: Address,
    listener: socket.socket,
    companion: Companion | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; then finish pending requests, and reject new ones."""
    logging.getLogger("uvicorn").setLevel(
        logging.INFO if config.debug_level() else logging.CRITICAL
    )
    settings = uvicorn.Config(
        _closing_connections(app, gate),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=address.connections,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=address.drain,
    )
    # uvicorn raises the signal again at its end, for handlers such as Python's own.
    previous = {each: signal.signal(each, _ignore) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        server = _Server(settings, gate, companion, address.drain)
        asyncio.run(server.serve([listener]))
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _ignore(*_: object) -> None:
    """Ignore a signal that the server has already handled."""


def new_gate(limits: Limits) -> Gate:
    """Return the gate that applies the limits of a server."""
    return Gate(limits, Metrics())
