"""`litegpu generate MODEL PROMPT`: continues a text with a language model."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from litegpu.tools.console import note
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
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

ARGUMENTS = {**MODEL, "prompt": "the text to continue; - is stdin"}
FLAGS = (
    Flag("chat", bool, False, "answer the prompt as a message of a chat"),
    *ANSWER_FLAGS,
    *MODEL_FLAGS,
    JSON,
)
EXAMPLES = (
    'litegpu generate zoo:tiny_lm "The sky is" --max_tokens=20',
    'litegpu generate gemma.litertlm "The sky is" --temperature=0.8 --top_p=0.9',
    'litegpu generate gemma.litertlm "Why is the sky blue?" --chat --backend=cuda',
    'litegpu generate model.tflite "The sky is" --tokenizer=tokenizer.json',
)
NOTES = (
    "The text is printed token by token. Without --temperature, --top_k and --top_p the sampling "
    "parameters of the model file apply, or else the most probable token is chosen.",
    "zoo:tiny_lm has random weights, so its text has no meaning.",
)


def main(args: argparse.Namespace) -> int:
    """Print the answer, and its speed on stderr."""
    try_to_write("json", args.json)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with open_language_model(args) as model:
        given = [{"role": "user", "content": prompt}] if args.chat else prompt
        with model.stream(given, **answer_options(args)) as stream:
            for part in stream:
                if not prints_json(args):
                    print(shown(part), end="", flush=True)
            answer = stream.so_far()
    if not prints_json(args):
        print()
    note(speed(answer))
    found = {"prompt": prompt, **asdict(answer), "tokens_per_second": answer.tokens_per_second}
    write_json("json", args.json, found)
    return 0
