"""Decodes tokens incrementally to whole characters, and detects stop texts and stop tokens."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.language_model.tokenizer import Tokenizer

_PARTIAL = "\N{REPLACEMENT CHARACTER}"
_MAX_PARTIAL = 3
"""Maximum number of replacement characters for an incomplete UTF-8 character."""


class TextDecoder:
    """Decodes tokens one by one; buffers incomplete characters until they are complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Decode with a tokenizer."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        """The tokens since the second-to-last point at which the text was complete. Earlier tokens
        are kept because the text of a token can depend on its predecessors."""
        self._whole = 0
        """The number of tokens in `_tokens` whose text has been returned."""
        self._returned = 0
        """The number of characters of the text of `_tokens` that have been returned."""

    def add(self, token: int) -> str:
        """Add a token; return the new text."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        partial = len(text) - len(text.rstrip(_PARTIAL))
        end = max(len(text) - min(partial, _MAX_PARTIAL), self._returned)
        new = text[self._returned : end]
        self._returned = end
        if not partial and text:
            self._tokens = self._tokens[self._whole :]
            self._whole = len(self._tokens)
            self._returned = len(self._tokenizer.decode(self._tokens))
        return new

    def end(self) -> str:
        """Return the text that is still buffered."""
        text = self._tokenizer.decode(self._tokens)[self._returned :]
        self._returned += len(text)
        return text


class StopTexts:
    """Ends a text at the first stop text; buffers text that may be the start of a stop text."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Use these stop texts."""
        self._stops = [each for each in stops if each]
        self._pending = ""
        self.found = False
        """Whether a stop text has been found."""

    def add(self, text: str) -> str:
        """Add text; return the text that cannot belong to a stop text."""
        if self.found:
            return ""
        self._pending += text
        places = [self._pending.find(each) for each in self._stops]
        if (first := min((each for each in places if each >= 0), default=-1)) >= 0:
            self.found = True
            certain, self._pending = self._pending[:first], ""
            return certain
        waiting = max(map(self._beginning, self._stops), default=0)
        certain = self._pending[: len(self._pending) - waiting]
        self._pending = self._pending[len(certain) :]
        return certain

    def _beginning(self, stop: str) -> int:
        """Return the number of characters at the text's end that are a prefix of `stop`."""
        longest = min(len(stop) - 1, len(self._pending))
        return next((n for n in range(longest, 0, -1) if self._pending.endswith(stop[:n])), 0)

    def end(self) -> str:
        """Return the text that is still buffered."""
        text, self._pending = self._pending, ""
        return text


class StopTokens:
    """Ends an answer at the first stop sequence; buffers tokens that may start a sequence."""

    def __init__(self, stops: Sequence[tuple[int, ...]]) -> None:
        """Use these stop sequences."""
        self._stops = sorted(filter(None, stops), key=len)
        self._pending: list[int] = []
        self.found = False
        """Whether a stop sequence has been found."""

    def add(self, token: int) -> list[int]:
        """Add a token; return the tokens that cannot belong to a stop sequence."""
        self._pending.append(token)
        pending = tuple(self._pending)
        for stop in self._stops:  # shortest first: longer ones may begin with a part of the answer
            if pending[-len(stop) :] == stop:
                self.found = True
                self._pending = []
                return [*pending[: len(pending) - len(stop)]]
        waiting = max((self._beginning(stop) for stop in self._stops), default=0)
        self._pending = [*pending[len(pending) - waiting :]]
        return [*pending[: len(pending) - waiting]]

    def _beginning(self, stop: tuple[int, ...]) -> int:
        pending = tuple(self._pending)
        longest = min(len(stop) - 1, len(pending))
        return next((n for n in range(longest, 0, -1) if pending[-n:] == stop[:n]), 0)

    def end(self) -> list[int]:
        """Return the tokens that are still buffered."""
        tokens, self._pending = self._pending, []
        return tokens
