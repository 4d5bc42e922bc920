"""Parses and checks requests of OpenAI's protocol for completions and chats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litegpu.errors import RequestError, did_you_mean

_OPTIONS = ("temperature", "top_p", "top_k", "seed")
_COMMON = ("model", "stream", "stream_options", "max_tokens", "stop", "logprobs", *_OPTIONS)
_IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("parallel_tool_calls",),
)
"""Fields that the server ignores, because they do not change the answer."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Unsupported fields, with the neutral values that the server accepts."""
_MAX_STOPS = 4
_MAX_PROMPTS = 64
_MAX_LOGPROBS = {True: 20, False: 5}
"""The maximum number of logprobs in OpenAI's protocol, for chats and for completions."""


@dataclass(frozen=True, slots=True)
class Job:
    """The parsed contents of a request."""

    model: str
    prompts: list[Any]
    """The prompts for LanguageModel.stream, each with one answer."""
    options: Mapping[str, Any]
    """The options of LanguageModel.stream."""
    chat: bool
    stream: bool
    usage: bool
    """Whether a stream ends with the token usage."""


def job_of(found: Mapping[str, Any], chat: bool) -> Job:
    """Parse the JSON of a request. Raises RequestError."""
    found = {name: value for name, value in found.items() if value is not None}
    own = ("messages", "max_completion_tokens", "top_logprobs") if chat else ("prompt",)
    known = (*_COMMON, *own, *_IGNORED, *_NEUTRAL)
    for name, value in found.items():
        if name not in known:
            raise RequestError(f"Unrecognized field '{name[:40]}'.{did_you_mean(name[:40], known)}")
        if name in _NEUTRAL and not any(value == each for each in _NEUTRAL[name]):
            raise RequestError(
                f"'{name}' is {_shown(value)}, which is not supported. Leave it out."
            )
    model = found.get("model")
    if not isinstance(model, str):
        raise RequestError("'model' is missing or no text. Give a name of /v1/models.")
    stream_options = found.get("stream_options", {})
    if not isinstance(stream_options, dict):
        raise RequestError("'stream_options' is no object. Use {\"include_usage\": true}.")
    return Job(
        model,
        [_messages(found.get("messages"))] if chat else _prompts(found.get("prompt")),
        _options(found, chat),
        chat,
        _flag(found, "stream"),
        _flag(stream_options, "include_usage"),
    )


def _options(found: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    options = {name: found[name] for name in _OPTIONS if name in found}
    for name in ("max_tokens", "max_completion_tokens"):
        if name in found:
            options["max_tokens"] = found[name]
    stop = found.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stops, list)
        or len(stops) > _MAX_STOPS
        or not all(isinstance(each, str) for each in stops)
    ):
        raise RequestError(
            f"'stop' is {_shown(stop)}. Give a string, or a list of up to {_MAX_STOPS} strings."
        )
    options["stop"] = stops
    if (logprobs := _logprobs(found, chat)) is not None:
        options["logprobs"] = logprobs
    return options


def _logprobs(found: Mapping[str, Any], chat: bool) -> int | None:
    name = "top_logprobs" if chat else "logprobs"
    if chat and not _flag(found, "logprobs"):
        if name in found:
            raise RequestError("'top_logprobs' needs 'logprobs': true.")
        return None
    count = found.get(name, 0 if chat else None)
    most = _MAX_LOGPROBS[chat]
    if count is not None and not (type(count) is int and 0 <= count <= most):
        raise RequestError(f"'{name}' is {_shown(count)}. Use a whole number from 0 to {most}.")
    return count


def _flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"'{name}' is {_shown(value)}. Use true or false.")
    return value


def _prompts(prompt: Any) -> list[Any]:
    """Return the prompts of a completion request: texts, or lists of tokens."""
    if isinstance(prompt, str) or _are(int, prompt):
        return [prompt]
    nested = _are(list, prompt) and all(_are(int, each) for each in prompt)
    if (_are(str, prompt) or nested) and len(prompt) <= _MAX_PROMPTS:
        return list(prompt)
    raise RequestError(
        f"'prompt' is {_shown(prompt)}. Give a text, a list of tokens, or up to {_MAX_PROMPTS} "
        "of these."
    )


def _are(kind: type, items: Any) -> bool:
    return isinstance(items, list) and bool(items) and all(type(each) is kind for each in items)


def _messages(messages: Any) -> list[dict[str, str]]:
    if not _are(dict, messages):
        raise RequestError(
            "'messages' is missing, or is not a list of objects. "
            'Give [{"role": "user", "content": "Hello"}].'
        )
    return [_message(each) for each in messages]


def _message(found: Mapping[str, Any]) -> dict[str, str]:
    role: Any = found.get("role")
    content: Any = found.get("content")
    if _are(dict, content) and all(each.get("type") == "text" for each in content):
        content = "".join(str(each.get("text", "")) for each in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise RequestError(
            f"A message is {_shown(found)}. Give 'role' and 'content', a text or parts of the "
            "type text."
        )
    return {"role": "system" if role == "developer" else role, "content": content}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
