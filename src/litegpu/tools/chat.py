"""`litegpu chat MODEL`: a conversation with a language model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from litegpu.errors import CacheFullError
from litegpu.language_model.chat import Message
from litegpu.tools.console import note
from litegpu.tools.flags import Flag
from litegpu.tools.language import (
    ANSWER_FLAGS,
    MODEL,
    MODEL_FLAGS,
    answer_options,
    open_language_model,
    shown,
    speed,
)

ARGUMENTS = MODEL
FLAGS = (
    Flag("system", str, None, "a message that precedes the conversation"),
    *ANSWER_FLAGS,
    *MODEL_FLAGS,
)
EXAMPLES = (
    "litegpu chat gemma.litertlm",
    'litegpu chat gemma.litertlm --system="Be brief." --temperature=0.7',
    "litegpu chat zoo:tiny_lm --max_tokens=20",
)
NOTES = (
    "Each line of stdin is a message. /new starts a new conversation; /quit or the end of stdin "
    "quits. Ctrl+C stops the current answer. The KV cache stores previous messages, so only new "
    "tokens are computed.",
)
_NEW, _QUIT = "/new", "/quit"


def main(args: argparse.Namespace) -> int:
    """Read messages and print answers until stdin ends."""
    with open_language_model(args) as model, model.session() as session:
        first = [{"role": "system", "content": args.system}] if args.system else []
        messages: list[Message] = [*first]
        for line in _lines():
            if line == _NEW:
                messages = [*first]
                continue
            messages.append({"role": "user", "content": line})
            try:
                with session.stream(messages, **answer_options(args)) as stream:
                    _print(stream)
                answer = stream.so_far()
            except CacheFullError as error:
                messages.pop()
                note(f"{error} {_NEW} starts a new conversation.")
                continue
            messages.append({"role": "assistant", "content": answer.text})
            note(speed(answer))
    return 0


def _print(parts: Iterator[str]) -> None:
    try:
        for part in parts:
            print(shown(part), end="", flush=True)
    except KeyboardInterrupt:
        pass  # the answer ends here
    print()


def _lines() -> Iterator[str]:
    """Yield the lines of stdin that are not empty, with a prompt on a terminal."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line or line.strip() == _QUIT:
            return
        if line.strip():
            yield line.strip()
