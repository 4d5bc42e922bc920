"""Writes the .litertlm file of a small language model: metadata, tokenizer and models."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from litegpu.files.wire import message
from litegpu.zoo.containers import Section, litertlm

_SPECIAL = ("<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_MERGES = (
    *("t h", "i n", "e r", "o n", "r e", "a n", "o r", "e n", "a t", "e s", "th e", "in g"),
    *("Ġ t", "Ġ a", "Ġ o", "Ġ s", "Ġ w", "Ġ c", "Ġ the", "Ġa n", "Ġo f", "Ġ in", "Ġt o", "i s"),
    *("o u", "l l", "er s", "e d", "Ġ m", "o d", "e l", "Ġm od", "Ġmod el", "Ġan d", "Ġ is"),
)
"""The pairs of tokens that the tokenizer merges, in order; `Ġ` is a space."""
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{{ message['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_BYTES, _MERGED = 256, len(_MERGES)
WORDS = len(_SPECIAL) + _BYTES + _MERGED
"""The number of tokens of the vocabulary."""


def language_file(
    model: bytes, context: int, embedder: bytes = b"", per_layer: bytes = b"", *, window: int = 0
) -> bytes:
    """Return the .litertlm file of a model of `build`: metadata, tokenizer and models.

    `window` is the number of tokens that a token sees in local attention, 0 without any. The
    tokenizer has a token for each byte, tokens for parts of English words, and special tokens.
    """
    tokenizer = json.dumps(_tokenizer(), ensure_ascii=False).encode()
    sections = (
        Section(_metadata(context), 5, ""),
        *([Section(_executor_metadata(window), 9, "")] if window else []),
        Section(len(tokenizer).to_bytes(8, "little") + zlib.compress(tokenizer), 6, ""),
        Section(model),
        *([Section(embedder, model_type="tf_lite_embedder")] if embedder else []),
        *([Section(per_layer, model_type="tf_lite_per_layer_embedder")] if per_layer else []),
    )
    return litertlm(sections)


def _metadata(context: int) -> bytes:
    """Return an LlmMetadata message."""
    stops = [message((2, message((2, each)))) for each in ("<eos>", "<end_of_turn>\n")]
    rest = message((5, context), (7, _TEMPLATE), (13, message((2, _SPECIAL[0]))))
    return b"".join((message((1, message((2, "<bos>")))), *stops, rest))


def _executor_metadata(window: int) -> bytes:
    """Return an ExecutorMetadata message: tokens see earlier ones, some only the last `window`."""
    causal = 1
    return message((1, message((3, message((1, causal), (2, causal), (3, window))))))


def _tokenizer() -> Mapping[str, Any]:
    """Return the description of a byte pair encoding in the format of Hugging Face's tokenizers."""
    words = [*_SPECIAL, *_letters()]
    words += [each.replace(" ", "") for each in _MERGES]
    options = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": word, **flags, "special": True}
            for number, word in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **options},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **options},
        "model": {
            "type": "BPE",
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [*_MERGES],
        },
    }


def _letters() -> list[str]:
    """Return the printable character for each byte, as in GPT-2's tokenizer."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(_BYTES, 2 * _BYTES))
    return [chr(each if each in printable else next(others)) for each in range(_BYTES)]
