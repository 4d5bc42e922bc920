"""OpenAI's protocol: `/v1/models`, `/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from litegpu.errors import CacheFullError, RequestError
from litegpu.language_model import Completion, LanguageModel, TokenLogprobs
from litegpu.tools.serve.jobs import Job, job_of
from litegpu.tools.serve.language import ServedLanguageModel
from litegpu.tools.serve.models import Models
from litegpu.tools.serve.tensors import parse_json
from litegpu.tools.serve.web import (
    Answer,
    Endpoint,
    Gate,
    Handler,
    body_of,
    json_answer,
    message_of,
    status_of,
    unless_gone,
)

_REASONS: Mapping[str, str] = {"stop": "stop", "length": "length", "context": "length"}
_CODES: Mapping[int, str] = {404: "model_not_found", 429: "rate_limit_exceeded"}
_SERVER_FAULT = 500
_MIN_LOGPROB = -9999.0
"""The protocol's value for a log probability of minus infinity."""


def error_body(error: Exception, status: int, message: str) -> dict[str, Any]:
    """Return the JSON of an error."""
    kind = "server_error" if status >= _SERVER_FAULT else "invalid_request_error"
    code = "context_length_exceeded" if isinstance(error, CacheFullError) else None
    if isinstance(error, RequestError):
        code = _CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class V1:
    """The request handlers of OpenAI's protocol."""

    def __init__(self, models: Models[ServedLanguageModel], gate: Gate) -> None:
        self._models, self._gate = models, gate
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        """Return the routes of all request handlers."""
        found: list[tuple[str, str, Handler]] = [
            ("/v1/models", "GET", self._list),
            ("/v1/models/{model}", "GET", self._model),
            ("/v1/completions", "POST", self._completion),
            ("/v1/chat/completions", "POST", self._chat),
        ]
        return [
            Route(path, Endpoint(handler, error_body, self._gate.limits), methods=[method])
            for path, method, handler in found
        ]

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "litegpu"}

    async def _list(self, _: Request, __: ExitStack) -> Answer:
        return json_answer({"object": "list", "data": [*map(self._described, self._models.names)]})

    async def _model(self, request: Request, _: ExitStack) -> Answer:
        name = request.path_params["model"]
        self._find(name)
        return json_answer(self._described(name))

    def _find(self, name: str) -> ServedLanguageModel:
        """Find the model for NAME or NAME:VERSION. Raises RequestError (404)."""
        name, _, version = name.partition(":")
        return self._models.find(name, version or None)

    async def _completion(self, request: Request, stack: ExitStack) -> Answer:
        return await self._answer(request, stack, chat=False)

    async def _chat(self, request: Request, stack: ExitStack) -> Answer:
        return await self._answer(request, stack, chat=True)

    async def _answer(self, request: Request, stack: ExitStack, chat: bool) -> Answer:
        gate = self._gate
        body = await body_of(request, gate, stack)
        job = job_of(await asyncio.to_thread(parse_json, body), chat)
        model = self._find(job.model)
        request.state.answered = lambda status: gate.metrics.answered(
            model.name, model.version, status
        )
        stack.enter_context(gate.admitted(model))
        writer = _Writer(job, model.model)
        parts = self._parts(model, job, writer)
        first = await unless_gone(request, anext(parts), gate.limits.timeout)
        if job.stream:
            headers = {"cache-control": "no-cache"}
            return Answer(_events(writer, first, parts), 200, "text/event-stream", headers)
        async with aclosing(parts):
            found = [first]
            while (each := await unless_gone(request, anext(parts, None))) is not None:
                found.append(each)
        return json_answer(writer.whole(found))

    async def _parts(
        self, model: ServedLanguageModel, job: Job, writer: _Writer
    ) -> AsyncGenerator[_Chunk, None]:
        """Yield the parts of all answers; the server generates the answers sequentially."""
        for index, prompt in enumerate(job.prompts):
            known = 0
            async with aclosing(model.parts(prompt, job.options)) as parts:
                async for part in parts:
                    logprobs: Sequence[TokenLogprobs] = ()
                    if part.so_far is not None:
                        logprobs = part.so_far.logprobs[known:]
                        known += len(logprobs)
                    if part.answer is not None:
                        self._count(model, writer, part.answer)
                    reason = _REASONS[part.answer.reason] if part.answer is not None else None
                    yield _Chunk(index, part.text, logprobs, reason)

    def _count(self, model: ServedLanguageModel, writer: _Writer, answer: Completion) -> None:
        writer.count(answer)
        tokens = answer.prompt_tokens, len(answer.tokens)
        self._gate.metrics.tokens(model.name, model.version, *tokens)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of one of the answers to a request."""

    index: int
    text: str
    logprobs: Sequence[TokenLogprobs]
    reason: str | None
    """The reason why the answer ends with this chunk; None if it continues."""


async def _events(
    writer: _Writer, first: _Chunk, rest: AsyncGenerator[_Chunk, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the server-sent events of a stream; an error is the last event."""
    async with aclosing(rest):
        try:
            for start in writer.starts():
                yield _event(start)
            yield _event(writer.chunk(first))
            async for each in rest:
                yield _event(writer.chunk(each))
            if writer.job.usage:
                yield _event(writer.usage_chunk())
        except Exception as error:
            yield _event(error_body(error, status_of(error), message_of(error)))
            return
    yield b"data: [DONE]\n\n"


def _event(found: Any) -> bytes:
    return b"data: " + json.dumps(found, allow_nan=False).encode() + b"\n\n"


@dataclass
class _Writer:
    """Formats the answers to one request."""

    job: Job
    model: LanguageModel
    _prompt_tokens: int = 0
    _tokens: int = 0
    _offsets: dict[int, int] = field(default_factory=dict)
    _id: str = ""
    _created: int = 0

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.job.chat else "cmpl"
        self._id, self._created = f"{kind}-{uuid.uuid4().hex}", int(time.time())

    def count(self, answer: Completion) -> None:
        """Add the tokens of an answer to the token usage."""
        self._prompt_tokens += answer.prompt_tokens
        self._tokens += len(answer.tokens)

    def _envelope(self, choices: list[Any], whole: bool = False) -> dict[str, Any]:
        kind = "text_completion"
        if self.job.chat:
            kind = "chat.completion" if whole else "chat.completion.chunk"
        found = {"id": self._id, "object": kind, "created": self._created, "model": self.job.model}
        usage = {"usage": None} if self.job.usage and not whole else {}
        return {**found, "choices": choices, **usage}

    def starts(self) -> list[dict[str, Any]]:
        """Return the first chunks of a stream."""
        if not self.job.chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [self._envelope([{"index": 0, "delta": delta, **_EMPTY_END}])]

    def chunk(self, part: _Chunk) -> dict[str, Any]:
        """Return a part as a chunk of a stream."""
        ends = {"logprobs": self._logprobs([part]), "finish_reason": part.reason}
        if not self.job.chat:
            return self._envelope([{"index": part.index, "text": part.text, **ends}])
        delta = {"content": part.text} if part.text else {}
        return self._envelope([{"index": part.index, "delta": delta, **ends}])

    def usage_chunk(self) -> dict[str, Any]:
        """Return the last chunk of a stream, which contains the token usage."""
        return {**self._envelope([]), "usage": self._usage()}

    def whole(self, parts: Sequence[_Chunk]) -> dict[str, Any]:
        """Combine all parts to one answer."""
        choices = []
        for index in range(len(self.job.prompts)):
            own = [each for each in parts if each.index == index]
            text = "".join(each.text for each in own)
            message = {"role": "assistant", "content": text, "refusal": None}
            ends = {"logprobs": self._logprobs(own), "finish_reason": own[-1].reason}
            content = {"message": message} if self.job.chat else {"text": text}
            choices.append({"index": index, **content, **ends})
        return {**self._envelope(choices, whole=True), "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._tokens,
            "total_tokens": self._prompt_tokens + self._tokens,
        }

    def _logprobs(self, parts: Sequence[_Chunk]) -> dict[str, Any] | None:
        if "logprobs" not in self.job.options:
            return None
        found = [each for part in parts for each in part.logprobs]
        if self.job.chat:
            content = [
                {
                    **self._token(each.token, each.logprob),
                    "top_logprobs": [self._token(*pair) for pair in each.top],
                }
                for each in found
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(each.token) for each in found]
        offsets = []
        for text in texts:
            offsets.append(self._offsets.get(parts[0].index, 0))
            self._offsets[parts[0].index] = offsets[-1] + len(text)
        return {
            "tokens": texts,
            "token_logprobs": [_finite(each.logprob) for each in found],
            "top_logprobs": [
                {self._text(token): _finite(value) for token, value in each.top} for each in found
            ],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text(token)
        return {"token": text, "logprob": _finite(logprob), "bytes": [*text.encode()]}

    def _text(self, token: int) -> str:
        return self.model.detokenize([token])


_EMPTY_END: Mapping[str, Any] = {"logprobs": None, "finish_reason": None}


def _finite(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB)
