"""Text of tokens as they come: whole characters, and nothing of what ends an answer."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.language_model.tokenizer import Tokenizer

_PARTIAL = "\N{REPLACEMENT CHARACTER}"
_MOST_PARTIAL = 3
"""Maximum number of these for the beginning of one character in UTF-8."""


class TextDecoder:
    """Decodes tokens one by one; holds back the beginning of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Decode with a tokenizer."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        """The tokens since the text was whole before the last time: some decode with a view of
        the tokens before them."""
        self._whole = 0
        """The number of these whose text was returned."""
        self._returned = 0
        """Characters of their text that were returned."""

    def add(self, token: int) -> str:
        """Return what a token adds to the text."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        partial = len(text) - len(text.rstrip(_PARTIAL))
        end = max(len(text) - min(partial, _MOST_PARTIAL), self._returned)
        new = text[self._returned : end]
        self._returned = end
        if not partial and text:
            self._tokens = self._tokens[self._whole :]
            self._whole = len(self._tokens)
            self._returned = len(self._tokenizer.decode(self._tokens))
        return new

    def end(self) -> str:
        """Return what was held back."""
        text = self._tokenizer.decode(self._tokens)[self._returned :]
        self._returned += len(text)
        return text


class StopTexts:
    """Ends a text at the first of some texts; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the texts."""
        self._stops = [each for each in stops if each]
        self._pending = ""
        self.found = False
        """Whether one of them has come."""

    def add(self, text: str) -> str:
        """Return what is certain to precede a stop."""
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
        """Return how much of a stop the end of the text is."""
        longest = min(len(stop) - 1, len(self._pending))
        return next((n for n in range(longest, 0, -1) if self._pending.endswith(stop[:n])), 0)

    def end(self) -> str:
        """Return what was held back."""
        text, self._pending = self._pending, ""
        return text


class StopTokens:
    """Ends an answer at the first of some rows of tokens; holds back the beginning of one."""

    def __init__(self, stops: Sequence[tuple[int, ...]]) -> None:
        """Take the rows of tokens."""
        self._stops = sorted(filter(None, stops), key=len)
        self._pending: list[int] = []
        self.found = False
        """Whether one of them has come."""

    def add(self, token: int) -> list[int]:
        """Return the tokens that are certain to precede a stop."""
        self._pending.append(token)
        pending = tuple(self._pending)
        for stop in self._stops:  # the shortest: longer ones may begin with a part of the answer
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
        """Return what was held back."""
        tokens, self._pending = self._pending, []
        return tokens
