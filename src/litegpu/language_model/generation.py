"""Answers of a language model, streamed in parts or returned as a whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from litegpu.language_model.prompts import Prompts
from litegpu.language_model.sampling import Logits, Sampler, Sampling
from litegpu.language_model.text import StopTexts, TextDecoder


class Growing(Protocol):
    """A sequence of tokens that an answer continues; Session implements it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens so far."""

    @property
    def room(self) -> int:
        """The number of tokens that still fit the cache."""

    def append(self, prompt: Sequence[int], /) -> None:
        """Add the tokens of a prompt."""

    def logits(self) -> Logits:
        """Return the logits of the next token."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities (natural) at one token of an answer, before temperature and top_p."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The most probable tokens at this position, in descending order of probability."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The options for generating an answer."""

    sampling: Sampling
    max_tokens: int
    stops: list[str]
    """Texts that end the answer."""
    logprobs: int | None = None
    """Number of most probable tokens to store for each answer token; None for no logprobs."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete answer, or the part generated so far."""

    text: str
    tokens: tuple[int, ...]
    """The tokens of the answer, without the stop tokens."""
    reason: str
    """Why the answer ended: "stop" (a stop token or text), "length" (max_tokens), "context" (the
    cache is full) or "cancelled"."""
    prompt_tokens: int
    """The number of tokens in the context before the answer."""
    prefill_seconds: float
    """Seconds until the first token."""
    decode_seconds: float
    """Seconds from the first token to the last."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """The log probabilities of each answer token, if requested."""

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second after the first one; 0 for a single token."""
        count = len(self.tokens) - 1
        return count / self.decode_seconds if count > 0 and self.decode_seconds else 0.0


class TextStream(Iterator[str]):
    """An iterator over the parts of an answer, which yields each part as soon as it is final.

    A part consists of whole characters, and never contains a part of a stop text. `close` ends the
    answer early; the session keeps the tokens generated until then.
    """

    def __init__(
        self,
        session: Growing,
        prompts: Prompts,
        generation: Generation,
    ) -> None:
        """Create a stream that continues a session; only Session calls this."""
        self._session, self._prompts, self._generation = session, prompts, generation
        self._at_end: Callable[[], None] | None = None
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._reason = ""
        self._prompt_tokens = len(session.tokens)
        self._prefill_seconds = self._decode_seconds = 0.0
        self._parts = self._generate()
        self._lock = threading.RLock()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> str:
        """Return the next part of the answer."""
        with self._lock:
            try:
                part = next(self._parts)
            except BaseException:
                self._finish()
                raise
            self._texts.append(part)
            return part

    def call_at_end(self, work: Callable[[], None]) -> None:
        """Call `work` once, when the answer has ended or the stream is closed."""
        self._at_end = work

    def close(self) -> None:
        """End the answer; if another thread is computing a part, wait for that part."""
        with self._lock:
            self._parts.close()
            self._finish()

    def _finish(self) -> None:
        self._reason = self._reason or "cancelled"
        if self._at_end is not None:
            at_end, self._at_end = self._at_end, None
            at_end()

    def completion(self) -> Completion:
        """Wait for the rest of the answer, and return the complete answer."""
        for _ in self:
            pass
        return self.so_far()

    def so_far(self) -> Completion:
        """Return the answer generated so far; `reason` is empty until the answer has ended."""
        return Completion(
            "".join(self._texts),
            tuple(self._tokens),
            self._reason,
            self._prompt_tokens,
            self._prefill_seconds,
            self._decode_seconds,
            # The last entries may belong to tokens that end the answer.
            tuple(self._logprobs[: len(self._tokens)]),
        )

    def _generate(self) -> Generator[str, None, None]:
        decoder = TextDecoder(self._prompts.tokenizer)
        stop_tokens, stop_texts = self._prompts.stop_tokens(), StopTexts(self._generation.stops)
        for token in self._chosen():
            certain = stop_tokens.add(token)
            for each in certain:
                self._tokens.append(each)
                if part := stop_texts.add(decoder.add(each)):
                    yield part
                if stop_texts.found:
                    break
            if stop_tokens.found or stop_texts.found:
                self._reason = "stop"
                break
        if not stop_texts.found:
            rest = stop_tokens.end()
            self._tokens += rest
            parts = [*map(decoder.add, rest), decoder.end()]
            if part := stop_texts.add("".join(parts)) + stop_texts.end():
                yield part

    def _chosen(self) -> Iterator[int]:
        """Yield sampled tokens; append each token to the session when the next is requested."""
        session, sampler = self._session, Sampler(self._generation.sampling)
        suppressed = [
            each for each in self._prompts.metadata.suppressed if 0 <= each < self._prompts.size
        ]
        for number in range(self._generation.max_tokens):
            begin = time.perf_counter()
            logits = session.logits()
            logits[suppressed] = -np.inf
            token = sampler.choose(logits)
            if self._generation.logprobs is not None:
                self._logprobs.append(logprobs_of(logits, token, self._generation.logprobs))
            seconds = time.perf_counter() - begin
            if number:
                self._decode_seconds += seconds
            else:
                self._prefill_seconds = seconds
            yield token
            if not session.room:
                self._reason = "context"
                return
            session.append([token])
        self._reason = "length"


def logprobs_of(logits: Logits, token: int, count: int) -> TokenLogprobs:
    """Return the log probabilities of a token and of the `count` most probable tokens."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    best = np.argsort(-wide, kind="stable")[:count]
    top = tuple((int(each), float(wide[each])) for each in best)
    return TokenLogprobs(token, float(wide[token]), top)
