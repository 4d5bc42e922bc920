"""The command `litegpu TOOL …`: finds the tool, runs it, prints errors as one line."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from litegpu import config
from litegpu.errors import LitegpuError, OptionsError, did_you_mean
from litegpu.tools.console import note, paragraph
from litegpu.tools.flags import FlagParser
from litegpu.version import __version__

TOOLS = {
    "devices": "list the usable devices of each backend, or why it has none",
    "doctor": "find out why models do not run on the GPU, and how to fix it",
    "delegates": "list the available delegates, and recommend one for a model",
    "check": "list the operations that run on the GPU, and why others do not",
    "run": "run a model on an image: result, latency, match with the CPU",
    "profile": "measure the time of each kernel of a model",
    "benchmark_model": "measure latency and memory as TensorFlow Lite's own tool does",
    "inference_diff": "compare a delegate's outputs on random inputs with the CPU's",
    "generate": "continue a text with a language model",
    "chat": "hold a conversation with a language model",
    "serve": "answer requests over HTTP: KServe's protocol and OpenAI's",
    "benchmark_lm": "measure tokens per second of a language model",
    "imagenet_image_classification": "measure the accuracy of a classifier on images",
    "coco_object_detection": "measure the accuracy of a detector on images",
    "generate_validation_labels": "write the labels of ImageNet's validation images as text",
    "preprocess_coco_minival": "write the ground truth of COCO's images for the evaluation",
    "cache": "list, check, clear and fill the cache of compiled partitions",
    "batch": "run a model on many images or arrays",
    "build_delegate": "compile a library that other programs load as a delegate",
    "picture_input": "write a model that takes bytes of an image (RGBA, BGR, NV12)",
    "demo": "classify and segment an image, and draw the result",
    "exec": "run a Python program whose interpreters use the GPU",
    "completion": "print a script that completes commands in bash, zsh or fish",
}
SHORT = {
    "benchmark": "benchmark_model",
    "imagenet": "imagenet_image_classification",
    "coco": "coco_object_detection",
}
"""Short names of tools."""

HELP = """\
usage: litegpu TOOL [ARGUMENTS]

Run TensorFlow Lite (LiteRT) models on the GPU, from the command line.

tools:
{tools}

`litegpu help TOOL` or `litegpu TOOL --help` shows the flags of a tool,
`litegpu --version` the version. Flags are spelt --flag=value or --flag value.
MODEL is a .tflite file, a model in a bundle (.task, .zip, .litertlm; with
several models BUNDLE:MEMBER), the name of a well-known model, or a model of
the zoo (zoo:NAME).

exit status: 0 it worked, 1 it failed (stderr says why), 2 wrong command line.

examples:
  litegpu devices
  litegpu check zoo:mobilenet_v1_1.0_224
  litegpu run mobilenet_v2_1.0_224 --image=picture.jpg --precision=fp16
  litegpu profile zoo:mobilenet_v1_1.0_224 --trace=trace.json
  litegpu generate gemma.litertlm "The sky is"
  litegpu demo
"""


_HELP = ("help", "-h", "--help")
_MODEL_FLAGS = ("--graph", "--model_file")


def help_text() -> str:
    """Return the text of `litegpu --help`."""
    return HELP.format(tools="\n".join(_tool_lines(*each) for each in TOOLS.items()))


def _tool_lines(name: str, text: str) -> str:
    """Return the help line of a tool: name and description, on two lines if the name is long."""
    gap = " " * (_NAMES - len(name)) if len(name) < _NAMES else "\n" + " " * (_NAMES + 2)
    return f"  {name}{gap}{text}"


_NAMES = 16
"""Number of columns for the names of tools in the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's); return the exit status.

    The exit status is 0 on success. After a failure the status is 1, and one line on stderr
    contains the reason. For bad usage, such as an unknown option or an invalid value, the status is
    2.
    """
    _use_forgiving_output()
    logging.basicConfig(format="%(message)s")
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except SystemExit as stop:  # argparse after --help (0) or bad usage (2)
        return int(stop.code or 0)
    except LitegpuError as error:
        if config.debug_level():
            raise
        return _fail(f"error: {error}", 2 if isinstance(error, OptionsError) else 1)
    except BrokenPipeError:  # the reader of the output, for example `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return status


def _dispatch(args: Sequence[str]) -> int:
    if not args:
        sys.stderr.write(help_text())
        return 2
    if args[0] in _HELP and len(args) > 1:
        args = [args[1], "--help"]
    name = args[0]
    if name in _HELP:
        sys.stdout.write(help_text())
        return 0
    if name == "--version":
        print(f"litegpu {__version__}")
        return 0
    name = SHORT.get(name, name.replace("-", "_"))
    if name not in TOOLS:
        hint = did_you_mean(args[0], [*TOOLS, *SHORT])
        return _fail(f"error: unknown tool '{args[0]}'.{hint}", 2)
    tool = importlib.import_module(f"litegpu.tools.{name}")
    own = any(flag.name == "graph" for flag in tool.FLAGS)
    rest = _graph_as_model(args[1:]) if "model" in tool.ARGUMENTS and not own else args[1:]
    parser = _parser(name, tool)
    if hasattr(tool, "PROGRAM"):
        flags, program = parser.split(rest)
        found = parser.parse([*flags, *["program"][: len(program)]])
        found.program = program
    else:
        found = parser.parse(rest)
    status: int = tool.main(found)
    return status


def _graph_as_model(args: Sequence[str]) -> list[str]:
    """Replace TensorFlow Lite's `--graph=MODEL` and `--model_file MODEL` by the argument MODEL."""
    found: list[str] = []
    for arg in args:
        flag, equals, value = arg.partition("=")
        if flag not in _MODEL_FLAGS:
            found.append(arg)
        elif equals:
            found.append(value)
    return found


def _fail(message: str, status: int) -> int:
    note(f"litegpu: {message}")
    return status


def _parser(name: str, tool: ModuleType) -> FlagParser:
    # what users of the tool should know about its figures
    notes = (f"litegpu {name}: {TOOLS[name]}.", *getattr(tool, "NOTES", ()))
    about = "\n\n".join(paragraph(text) for text in notes)
    counts = dict.fromkeys(getattr(tool, "OPTIONAL", ()), "?")
    counts |= dict.fromkeys(getattr(tool, "MANY", ()), "+")
    shown = [_FORMS[counts.get(each)].format(each.upper()) for each in tool.ARGUMENTS]
    words = [f"litegpu {name}", *shown, "[--FLAG=VALUE ...]"]
    if hasattr(tool, "PROGRAM"):
        words = [words[0], words[-1], *shown, "[ARGS ...]"]
    failed = getattr(tool, "FAILED", "")
    parser = FlagParser(words[0], about, tool.EXAMPLES, usage=" ".join(words), failed=failed)
    for argument, text in tool.ARGUMENTS.items():
        metavar = argument.upper()
        parser.add_argument(argument, metavar=metavar, help=text, nargs=counts.get(argument))
    parser.add_flags(tool.FLAGS)
    return parser


_FORMS = {None: "{}", "?": "[{}]", "+": "{} ..."}
"""How the usage text shows an argument, by the argument's `nargs`."""


def _use_forgiving_output() -> None:
    """Replace characters that an old console cannot print, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
