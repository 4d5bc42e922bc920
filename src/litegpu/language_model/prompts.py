"""Tokenizes prompts, and determines which tokens end an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import LanguageModelError
from litegpu.language_model.chat import Message, chat_text
from litegpu.language_model.metadata import Metadata, Token
from litegpu.language_model.text import StopTokens
from litegpu.language_model.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Message] | npt.NDArray[np.integer[Any]]
"""A text, tokens, or the messages of a chat."""


def is_chat(prompt: Prompt) -> bool:
    """Whether a prompt consists of the messages of a chat."""
    return (
        not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(each, Mapping) for each in prompt)
    )


def padding_token(tokenizer: Tokenizer | None, metadata: Metadata) -> int | None:
    """Return the number of the token that fills a prefill; None if the file does not name one."""
    token = metadata.padding
    if isinstance(token, str):
        token = tuple(tokenizer.encode(token)) if tokenizer is not None else ()
    return token[0] if len(token) == 1 else None


class Prompts:
    """Tokenizes prompts with a file's tokenizer and metadata."""

    def __init__(self, tokenizer: Tokenizer | None, metadata: Metadata, vocabulary: int) -> None:
        """Use the parts of a file; without a tokenizer, prompts must be tokens.

        `vocabulary` is the number of tokens in the model's vocabulary.
        """
        self._tokenizer, self.metadata, self.size = tokenizer, metadata, vocabulary

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises LanguageModelError if there is none."""
        if self._tokenizer is None:
            raise LanguageModelError(
                "The file has no tokenizer. Give one, as tokenizer='tokenizer.json' or a "
                "SentencePiece model, or use a session with tokens, and its logits."
            )
        return self._tokenizer

    def tokens_of(self, prompt: Prompt, continues: bool) -> list[int]:
        """Return the tokens of a prompt; text begins with the start token unless it `continues`.

        Raises LanguageModelError for an invalid prompt, and the errors of `chat_text`.
        """
        if isinstance(prompt, str):
            text = self._encoded(prompt)
            return text if continues else self._started(text)
        items: list[Any] = [*prompt] if isinstance(prompt, Sequence | np.ndarray) else []
        if is_chat(items):
            return self._started(self._encoded(self.chat_text(items)))
        if items and all(hasattr(each, "__index__") for each in items):
            return [self._checked(int(each)) for each in items]
        raise LanguageModelError(
            f"A prompt is {prompt!r}. Give text, messages such as "
            '[{"role": "user", "content": "Hello"}], or a list of tokens.'
        )

    def chat_text(self, messages: Sequence[Message]) -> str:
        """Return the prompt for messages of a chat, up to the start of the answer."""
        start = self._ids(self.metadata.start)
        return chat_text(messages, self.metadata, self.tokenizer.name(start[0]) if start else "")

    def _encoded(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise LanguageModelError(
                f"A prompt has an unpaired surrogate at position {error.start}. Give valid "
                "Unicode text."
            ) from error
        return self.tokenizer.encode(text)

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.size:
            raise LanguageModelError(
                f"{token} is no token of the model. Use numbers from 0 to {self.size - 1}."
            )
        return token

    def _started(self, tokens: list[int]) -> list[int]:
        start = self._ids(self.metadata.start)
        return tokens if tokens[: len(start)] == start else [*start, *tokens]

    def _ids(self, token: Token) -> list[int]:
        return self.tokenizer.encode(token) if isinstance(token, str) else [*token]

    def stop_tokens(self) -> StopTokens:
        """Return the stop tokens of the file; without a tokenizer, only those stored as numbers."""
        rows = []
        for stop in self.metadata.stops:
            if not isinstance(stop, str):
                rows.append(stop)
            elif self._tokenizer is not None:
                # White space around a mark belongs to the template.
                rows.append(tuple(self._tokenizer.encode(stop.strip() or stop)))
        return StopTokens(rows)
