"""Serves language models to several clients, with a separate session for each answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from litegpu.language_model import Completion, LanguageModel, TextStream
from litegpu.language_model.prompts import Prompt
from litegpu.tools.serve.served import Threads
from litegpu.tools.serve.web import Model


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a streamed answer."""

    text: str
    so_far: Completion | None
    """The answer so far, if the request includes logprobs."""
    answer: Completion | None
    """The complete answer, in the last part."""


class ServedLanguageModel(Model):
    """A language model that generates up to `answers` answers concurrently."""

    def __init__(self, name: str, version: str, model: LanguageModel, answers: int) -> None:
        """Serve a model; `close` releases it."""
        super().__init__(name, version)
        self.model = model
        self._slots = asyncio.Semaphore(answers)
        self._threads = Threads(name, answers)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of a language model, which has no tensors. See Model.metadata."""
        return {"platform": "language_model", "inputs": [], "outputs": []}

    async def parts(self, prompt: Prompt, options: Mapping[str, Any]) -> AsyncGenerator[Part, None]:
        """Yield the parts of an answer; the last part contains the complete answer.

        Closing the generator ends the answer. Raises as LanguageModel.stream does.
        """
        logprobs = options.get("logprobs") is not None
        async with self._slots:
            stream = await self._opened(prompt, options)
            try:
                while (text := await self._threads.run(next, stream, None)) is not None:
                    yield Part(text, stream.so_far() if logprobs else None, None)
                yield Part("", stream.so_far(), stream.so_far())
            finally:
                await self._closed(stream)

    async def _opened(self, prompt: Prompt, options: Mapping[str, Any]) -> TextStream:
        """Start an answer; close its session if the request is cancelled during the start."""
        begin = partial(self.model.stream, prompt, **options)
        opening = asyncio.ensure_future(self._threads.run(begin))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None:
                await self._closed(opening.result())
            raise

    async def _closed(self, stream: TextStream) -> None:
        """Release the session of an answer, even if this coroutine is cancelled."""
        closing = asyncio.ensure_future(self._threads.run(stream.close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})
            raise

    def close(self) -> None:
        """Wait for running answers, and release the model."""
        self._threads.close()
        self.model.close()
