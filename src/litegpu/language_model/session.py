"""A sequence of tokens, and its KV caches in a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litegpu.errors import CacheFullError, DeviceLostError, LanguageModelError
from litegpu.language_model.executor import Executor
from litegpu.language_model.generation import Completion, Generation, TextStream
from litegpu.language_model.prompts import Prompt, Prompts, is_chat
from litegpu.language_model.sampling import Logits, Sampling


class Session:
    """A conversation or another growing text: its tokens, and their KV caches on the device.

    `LanguageModel.session` creates sessions. Runs of several sessions may alternate; only one
    thread at a time may use a session.
    """

    def __init__(self, executor: Executor, prompts: Prompts) -> None:
        """Allocate the caches; only LanguageModel calls this."""
        self._executor, self._prompts = executor, prompts
        self._losses = executor.losses
        self._caches = executor.new_caches()
        self._tokens: list[int] = []
        self._cached = 0
        """The number of tokens that the caches contain."""
        self._logits: Logits | None = None
        """The logits after the last token, if already computed."""
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens so far: prompts and answers."""
        return tuple(self._tokens)

    @property
    def room(self) -> int:
        """The number of tokens that still fit the cache."""
        return self._executor.context - len(self._tokens)

    @property
    def nbytes(self) -> int:
        """The size of the session's caches in bytes."""
        return self._caches.nbytes()

    def append(self, prompt: Prompt) -> None:
        """Add text, tokens or messages; the model processes them when logits are needed.

        Messages must be the whole chat: the session discards its tokens from the first difference
        on.

        Raises:
            CacheFullError: the tokens do not fit the cache; nothing is added.
            LanguageModelError: the prompt is invalid.
        """
        self._open()
        tokens = self._prompts.tokens_of(prompt, continues=bool(self._tokens))
        begin = len(self._tokens)
        if is_chat(prompt):
            begin = _common(self._tokens, tokens)
            tokens = tokens[begin:]
        if begin + len(tokens) > self._executor.context:
            raise CacheFullError(
                f"{begin + len(tokens)} tokens do not fit the cache of {self._executor.context}. "
                "Shorten the prompt, rewind the session or start another session."
            )
        self.rewind(begin)
        if tokens:
            self._tokens += tokens
            self._logits = None

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens. Raises LanguageModelError if there are fewer."""
        self._open()
        if not 0 <= length <= len(self._tokens):
            raise LanguageModelError(
                f"The session has {len(self._tokens)} tokens and cannot be rewound to {length!r}."
            )
        if length == len(self._tokens):
            return
        del self._tokens[length:]
        self._logits = None
        if length < self._cached:
            self._cached = length
            if not self._executor.can_rewind:
                self._cached = 0
                self._caches.fill(self._executor.cache_start)

    def logits(self) -> Logits:
        """Process pending tokens, and return the next token's logits, float32 [vocabulary].

        Raises LanguageModelError if there are no tokens, and the errors of
        CompiledModel.run_by_index.
        """
        self._open()
        if not self._tokens:
            raise LanguageModelError("The session has no tokens. Append a prompt first.")
        if self._logits is None:
            try:
                self._logits = self._compute()
            except DeviceLostError:
                if self._losses == self._executor.losses:
                    raise
                self._logits = self._compute()
        return self._logits.copy()

    def _compute(self) -> Logits:
        """Process the tokens that are not in the caches; all tokens if the device was lost."""
        self._renew()
        last = len(self._tokens) - 1
        begin = min(self._cached, last)
        self._executor.prefill(self._tokens[begin:last], begin, self._caches)
        self._cached = last
        logits = self._executor.decode(self._tokens[last], last, self._caches)
        self._cached = last + 1
        return logits

    def _renew(self) -> None:
        """Allocate the caches again if the device was lost."""
        if self._losses != self._executor.losses:
            self._losses = self._executor.losses
            self._caches = self._executor.new_caches()
            self._cached = 0

    def fork(self) -> Session:
        """Return another session with the same tokens and a copy of the caches."""
        self._open()
        self._renew()
        other = Session(self._executor, self._prompts)
        other._caches.copy_from(self._caches)
        other._tokens, other._cached, other._logits = [*self._tokens], self._cached, self._logits
        return other

    def stream(
        self,
        prompt: Prompt = "",
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
    ) -> TextStream:
        """Append a prompt, if any, and return the answer in parts. See LanguageModel.generate."""
        metadata = self._prompts.metadata
        sampling = Sampling(
            _or(temperature, metadata.temperature, 0.0),
            _or(top_k, metadata.top_k, 0),
            _or(top_p, metadata.top_p, 1.0),
            seed,
        )
        most = self._most(max_tokens)
        generation = Generation(sampling, most, _texts(stop), _checked_count(logprobs))
        if not isinstance(prompt, str) or prompt:
            self.append(prompt)
        return TextStream(self, self._prompts, generation)

    def generate(self, prompt: Prompt = "", **options: object) -> Completion:
        """Append a prompt, if any, and return the answer. See LanguageModel.generate."""
        return self.stream(prompt, **options).completion()  # type: ignore[arg-type]

    def _most(self, max_tokens: int | None) -> int:
        if max_tokens is None:
            return self._executor.context
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise LanguageModelError(
                f"max_tokens is {max_tokens!r}. Use a whole number from 1, or None."
            )
        return max_tokens

    def _open(self) -> None:
        if self._closed:
            raise LanguageModelError("The session was closed. Start another session.")

    def close(self) -> None:
        """Release the caches. Repeated calls do nothing."""
        if not self._closed:
            self._closed = True
            self._caches.destroy()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of tokens in the common prefix of two sequences."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _texts(stop: str | Sequence[str]) -> list[str]:
    stops = [stop] if isinstance(stop, str) else [*stop]
    for each in stops:
        if not isinstance(each, str):
            raise LanguageModelError(f"stop has {each!r}. Give a text, or several.")
    return stops


def _checked_count(logprobs: int | None) -> int | None:
    if logprobs is not None and (type(logprobs) is not int or logprobs < 0):
        raise LanguageModelError(
            f"logprobs is {logprobs!r}. Use a whole number from 0, or None for no logprobs."
        )
    return logprobs


def _or(*values: Any) -> Any:
    """Return the first value that is not None."""
    return next(each for each in values if each is not None)
