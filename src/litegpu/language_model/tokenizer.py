"""Tokenizers of language models, implemented by the libraries for their file formats."""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from litegpu.errors import MissingDependencyError, ModelError, missing_dependency
from litegpu.host.optional_packages import load

_SIZE = 8
"""Bytes before a compressed tokenizer that contain its length."""
_MOST = 1 << 28
"""Maximum size of a tokenizer in bytes."""


class Tokenizer(ABC):
    """Converts text to token numbers, and token numbers to text."""

    size: int
    """The number of tokens in the vocabulary."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; the name of a special token is encoded as that token."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without special tokens; invalid UTF-8 becomes U+FFFD."""

    @abstractmethod
    def name(self, token: int) -> str:
        """Return the name of a token."""


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer in the `tokenizer.json` format of Hugging Face."""

    def __init__(self, content: bytes) -> None:
        """Read the JSON. Raises ModelError if it is damaged, MissingDependencyError."""
        library = load("tokenizers", "tokenizers", lambda: _missing("tokenizers"))
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises plain exceptions
            raise _damaged(error) from error
        self.size = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. See Tokenizer.encode."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. See Tokenizer.decode."""
        return str(self._tokenizer.decode([*tokens], skip_special_tokens=True))

    def name(self, token: int) -> str:
        """Return the name of a token. See Tokenizer.name."""
        return self._tokenizer.id_to_token(token) or ""


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer that is a SentencePiece model."""

    def __init__(self, content: bytes) -> None:
        """Read the model. Raises ModelError if it is damaged, MissingDependencyError."""
        library = load("sentencepiece", "sentencepiece", lambda: _missing("sentencepiece"))
        try:
            self._pieces: Any = library.SentencePieceProcessor(model_proto=content)
            self.size = self._pieces.get_piece_size()
            self._special = {
                self._pieces.id_to_piece(number): number
                for number in range(self.size)
                if self._pieces.is_control(number)
            }
        except Exception as error:  # the library raises RuntimeError and others
            raise _damaged(error) from error
        if not self.size:
            raise _damaged("it has no tokens")
        names = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._at_special = re.compile(f"({'|'.join(names)})") if names else None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. See Tokenizer.encode."""
        found: list[int] = []
        for part in self._at_special.split(text) if self._at_special else [text]:
            if part in self._special:
                found.append(self._special[part])
            elif part:
                found += self._pieces.encode(part)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. See Tokenizer.decode."""
        return str(self._pieces.decode([*map(int, tokens)]))

    def name(self, token: int) -> str:
        """Return the name of a token. See Tokenizer.name."""
        return str(self._pieces.id_to_piece(token)) if 0 <= token < self.size else ""


def read_tokenizer(content: bytes) -> Tokenizer:
    """Read a tokenizer from a section or file: JSON, compressed JSON, or SentencePiece.

    Raises ModelError for damaged content, and MissingDependencyError if the tokenizer's library is
    not installed.
    """
    if content[:1] == b"{":
        return HuggingFaceTokenizer(content)
    if content[_SIZE : _SIZE + 1] == b"\x78" and content[_SIZE - 1 : _SIZE] == b"\0":
        return HuggingFaceTokenizer(_inflated(content))
    return SentencePieceTokenizer(content)


def _inflated(content: bytes) -> bytes:
    size = int.from_bytes(content[:_SIZE], "little")
    try:
        found = zlib.decompressobj().decompress(content[_SIZE:], min(size, _MOST) + 1)
    except zlib.error as error:
        raise _damaged(error) from error
    if len(found) != size:
        raise _damaged(f"the size is not the stated {size} bytes")
    return found


def _missing(package: str) -> MissingDependencyError:
    return missing_dependency(package, "llm", "The tokenizer of this language model")


def _damaged(why: object) -> ModelError:
    return ModelError(
        f"The language model's tokenizer is damaged ({why}). Download or convert it again."
    )
