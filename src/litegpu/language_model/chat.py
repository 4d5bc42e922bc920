"""Converts the messages of a chat to a prompt, by the model's chat template."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import sandbox

from litegpu.errors import LanguageModelError, ModelError
from litegpu.language_model.metadata import Metadata

Message = Mapping[str, Any]
"""A message of a chat: `role` ("system", "user" or "assistant") and `content`."""
_ROLES = {"assistant": "model"}


def chat_text(messages: Sequence[Message], metadata: Metadata, start: str) -> str:
    """Return the prompt for the messages of a chat; `start` is the name of the start token.

    Raises:
        LanguageModelError: the messages have no role and content, or the file has no template.
        ModelError: the template fails.
    """
    for each in messages:
        if not isinstance(each, Mapping) or not {"role", "content"} <= each.keys():
            raise LanguageModelError(
                f"A message is {each!r}. Give a dict with 'role' and 'content', such as "
                '{"role": "user", "content": "Hello"}.'
            )
    if metadata.template:
        return _rendered(metadata.template, messages, start)
    if metadata.affixes:
        return _between_affixes(metadata.affixes, messages)
    raise LanguageModelError(
        "The file has no chat template. Give the prompt as text, with the control tokens that the "
        "model was trained with."
    )


def _rendered(template: str, messages: Sequence[Message], start: str) -> str:
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _fail, "strftime_now": time.strftime}
    try:
        return environment.from_string(template).render(
            messages=messages, bos_token=start, eos_token="", add_generation_prompt=True, tools=None
        )
    except _RejectedError as error:
        raise LanguageModelError(
            f"The model's chat template rejects the messages: {error}"
        ) from error
    except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"The chat template of the file fails ({type(error).__name__}: {error}). Give the "
            "prompt as text."
        ) from error


class _RejectedError(Exception):
    """An error that a chat template raises with `raise_exception`."""


def _fail(message: str) -> NoReturn:
    raise _RejectedError(message)


def _between_affixes(affixes: Mapping[str, tuple[str, str]], messages: Sequence[Message]) -> str:
    parts = []
    for each in messages:
        role = _ROLES.get(str(each["role"]), str(each["role"]))
        if role not in affixes:
            raise LanguageModelError(
                f"The model has no role '{each['role']}'. Use one of {[*affixes]}."
            )
        prefix, suffix = affixes[role]
        parts.append(f"{prefix}{each['content']}{suffix}")
    return "".join(parts) + affixes.get("model", ("", ""))[0]
