"""Flags of the tools for language models, and functions that open the models."""

from __future__ import annotations

import argparse
import os
from typing import Any

from litegpu.backends import TITLES
from litegpu.language_model import Completion, LanguageModel
from litegpu.tools.console import note
from litegpu.tools.delegation import DELEGATE_FLAGS, given_options, quietly
from litegpu.tools.flags import Flag, at_least, from_zero, positive_int, share
from litegpu.tools.models import RANDOM_WEIGHTS, model_folders
from litegpu.wording import counted
from litegpu.zoo import is_zoo_name

MODEL = {"model": "a .litertlm file, a .tflite file with --tokenizer, or zoo:tiny_lm"}
_BACKEND = Flag(
    *("backend", str, None),
    "the GPU API: cuda, opencl (cl), webgpu (or vulkan, metal, d3d12), opengl (gl); or cpu",
    known=(*TITLES, "cpu"),
)
LANGUAGE_DELEGATE_FLAGS = tuple(
    _BACKEND if flag.name == _BACKEND.name else flag for flag in DELEGATE_FLAGS
)
"""The delegate's flags; `backend` may also be cpu."""
MODEL_FLAGS = (
    *LANGUAGE_DELEGATE_FLAGS,
    Flag(
        *("tokenizer", str, None),
        "a tokenizer.json or a SentencePiece model that replaces the model file's tokenizer",
        metavar="FILE",
    ),
)
_SAMPLING_FLAGS = (
    Flag(
        "max_tokens",
        positive_int,
        None,
        "maximum number of tokens of an answer (default: as many as fit)",
    ),
    Flag(
        "temperature",
        from_zero,
        None,
        "sampling temperature, which divides the logits; 0: always the most probable token",
    ),
    Flag("top_k", at_least(0), None, "sample from the K most probable tokens only; 0: from all"),
    Flag(
        "top_p",
        share,
        None,
        "sample from the most probable tokens whose sum of probabilities reaches P; 1: from all",
    ),
    Flag("seed", at_least(0), None, "seed of the random numbers (default: a new one each time)"),
)
_REPLACED = "\N{REPLACEMENT CHARACTER}"
STOP = Flag("stop", str, None, "a text that ends an answer")
ANSWER_FLAGS = (*_SAMPLING_FLAGS, STOP)


def open_language_model(args: argparse.Namespace) -> LanguageModel:
    """Open the language model of a command line. Raises as LanguageModel does."""
    name = args.model
    if not is_zoo_name(name) and not os.path.exists(name):
        found = (str(folder / name) for folder in model_folders())
        name = next(filter(os.path.isfile, found), name)
    with quietly():
        model = LanguageModel(
            name, tokenizer=args.tokenizer, **given_options(args, LANGUAGE_DELEGATE_FLAGS)
        )
    note(f"model: {name}, {model.place}")
    if is_zoo_name(name):
        note(RANDOM_WEIGHTS)
    return model


def answer_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of an answer that flags set."""
    return given_options(args, ANSWER_FLAGS)


def shown(text: str) -> str:
    """Escape control characters, except line ends, in a model's text for a terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else _REPLACED for each in text)


def speed(answer: Completion) -> str:
    """Return a line about the speed of an answer."""
    return (
        f"{counted(answer.prompt_tokens, 'token')} of prompt, first token after "
        f"{answer.prefill_seconds * 1000:.1f} ms; {counted(len(answer.tokens), 'token')} of "
        f"answer, {answer.tokens_per_second:.1f} tokens/s ({answer.reason})"
    )
