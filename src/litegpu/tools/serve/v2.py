"""KServe's inference protocol, version 2, over HTTP."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.requests import Request
from starlette.routing import Route

from litegpu.errors import RequestError
from litegpu.tools.serve.models import Models
from litegpu.tools.serve.served import GraphModel
from litegpu.tools.serve.web import (
    Answer,
    Endpoint,
    Gate,
    Handler,
    Model,
    body_of,
    json_answer,
    unless_gone,
)
from litegpu.version import __version__

HEADER_LENGTH = "inference-header-content-length"
EXTENSIONS = ["binary_tensor_data"]


class V2:
    """The request handlers of KServe's protocol."""

    def __init__(self, models: Models[Model], gate: Gate) -> None:
        self._models, self._gate = models, gate

    def routes(self) -> list[Route]:
        """Return the routes of all request handlers."""
        model, version = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
        found: list[tuple[str, str, Handler]] = [
            ("/v2", "GET", self._server),
            ("/v2/health/live", "GET", self._live),
            ("/v2/health/ready", "GET", self._ready),
        ]
        for path in (model, version):
            found += [
                (path, "GET", self._metadata),
                (f"{path}/ready", "GET", self._model_ready),
                (f"{path}/infer", "POST", self._infer),
            ]
        return [
            Route(path, Endpoint(handler, error_body, self._gate.limits), methods=[method])
            for path, method, handler in found
        ]

    async def _server(self, _: Request, __: ExitStack) -> Answer:
        found = {"name": "litegpu", "version": __version__, "extensions": EXTENSIONS}
        return json_answer(found)

    async def _live(self, _: Request, __: ExitStack) -> Answer:
        return json_answer({"live": True})

    async def _ready(self, _: Request, __: ExitStack) -> Answer:
        ready = not self._gate.closing
        return json_answer({"ready": ready}, 200 if ready else 503)

    def _model(self, request: Request) -> Model:
        return self._models.find(request.path_params["model"], request.path_params.get("version"))

    async def _model_ready(self, request: Request, _: ExitStack) -> Answer:
        ready = not self._gate.closing
        found = {"name": self._model(request).name, "ready": ready}
        return json_answer(found, 200 if ready else 503)

    async def _metadata(self, request: Request, _: ExitStack) -> Answer:
        model = self._model(request)
        return json_answer(
            {
                "name": model.name,
                "versions": [*self._models.versions(model.name)],
                **model.metadata(),
            }
        )

    async def _infer(self, request: Request, stack: ExitStack) -> Answer:
        model = graph_model(self._model(request))
        gate = self._gate
        request.state.answered = lambda status: gate.metrics.answered(
            model.name, model.version, status
        )
        stack.enter_context(gate.admitted(model))
        body = await body_of(request, gate, stack)
        answer = model.answer(body, request.headers.get(HEADER_LENGTH))
        found, header = await unless_gone(request, answer, gate.limits.timeout)
        if header is None:
            return Answer(found)
        return Answer(found, type="application/octet-stream", headers={HEADER_LENGTH: str(header)})


def error_body(_: Exception, __: int, message: str) -> dict[str, str]:
    """Return the JSON of an error."""
    return {"error": message}


def graph_model(model: Model) -> GraphModel:
    """Return the model if it is a GraphModel. Raises RequestError for a language model."""
    if not isinstance(model, GraphModel):
        raise RequestError(
            f"'{model.name}' is a language model. Use /v1/completions or /v1/chat/completions."
        )
    return model
