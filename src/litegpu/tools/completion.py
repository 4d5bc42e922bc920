"""`litegpu completion SHELL`: prints a completion script for tools, flags and models."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from litegpu import zoo
from litegpu.errors import OptionsError, did_you_mean
from litegpu.files import CONTAINER_SUFFIXES
from litegpu.tools.cli import SHORT, TOOLS
from litegpu.tools.flags import Flag
from litegpu.tools.models import KNOWN
from litegpu.version import __version__

ARGUMENTS = {"shell": "bash, zsh or fish"}
FLAGS: tuple[Flag, ...] = ()
EXAMPLES = (
    "litegpu completion bash > ~/.local/share/bash-completion/completions/litegpu",
    "litegpu completion zsh > ~/.zfunc/_litegpu",
    "litegpu completion fish > ~/.config/fish/completions/litegpu.fish",
)
NOTES = (
    "The script contains the tools and flags of this version, so completing a command does not "
    "start Python. Write the script again after an update of litegpu. zsh needs `fpath+=~/.zfunc` "
    "before `compinit` in ~/.zshrc.",
)


@dataclass(frozen=True)
class _Tool:
    """The shell completions after the name of a tool."""

    name: str
    about: str
    flags: tuple[Flag, ...]
    takes_model: bool
    words: tuple[str, ...]
    """The completions of the tool's positional argument, in addition to files."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tool's name and its aliases."""
        return (self.name, *(short for short, name in SHORT.items() if name == self.name))


def main(args: argparse.Namespace) -> int:
    """Print the script. Raises OptionsError for an unsupported shell."""
    shell = args.shell.lower()
    if shell not in _SHELLS:
        raise OptionsError(
            f"There is no completion for '{args.shell}'.{did_you_mean(shell, _SHELLS)}"
        )
    for line in _SHELLS[shell]([_tool(name) for name in TOOLS]):
        print(line)
    print(f"# Written by `litegpu completion {shell}` of litegpu {__version__}.")
    return 0


def _tool(name: str) -> _Tool:
    module = importlib.import_module(f"litegpu.tools.{name}")
    takes_model = "model" in module.ARGUMENTS
    words = _models() if takes_model else tuple(_SHELLS) * ("shell" in module.ARGUMENTS)
    return _Tool(name, TOOLS[name], module.FLAGS, takes_model, words)


@cache
def _models() -> tuple[str, ...]:
    return (*KNOWN, *zoo.names())


def _choices(flag: Flag) -> tuple[str, ...]:
    """Return the known values of a flag, or the model names that the flag accepts."""
    return _models() if flag.metavar == "MODEL" else flag.values


def _is_bare(flag: Flag) -> bool:
    """Whether a flag may have no value, so that the next word is not its value."""
    return flag.kind is bool or flag.bare is not None


# bash

_BASH = """\
_litegpu() {
    local line=${COMP_LINE:0:COMP_POINT} tool=${COMP_WORDS[1]}
    local word=${line##*[[:space:]]} before found="" files=""
    before=${line%"$word"}
    before=${before%"${before##*[![:space:]]}"}
    before=${before##*[[:space:]]}
    [[ $before == --*=* ]] && before=""
    case $tool in
@ALIASES@
    esac
    if [[ $COMP_CWORD == 1 || $tool == help ]]; then
        tool=tools
    fi
    case $tool:$before=$word in
@AFTER@
    *)
        before=""
        case $tool:$word in
@WITHIN@
        esac
        ;;
    esac
    # Readline replaces what stands after the last of the characters that break words.
    local given=${before:+$before=}$word cut="" each
    [[ $word == *[=:]* ]] && cut=${word%"${word##*[=:]}"}
    cut=${before:+$before=}$cut
    COMPREPLY=()
    for each in $(compgen -W "$found" -- "$given"); do
        COMPREPLY+=("${each#"$cut"}")
    done
    if [[ $files ]]; then
        for each in @SUFFIXES@; do
            COMPREPLY+=($(compgen -f -X "!*$each" -- "$word"))
        done
        COMPREPLY+=($(compgen -d -S / -- "$word"))
    fi
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace
    fi
}
complete -o default -F _litegpu litegpu
"""


def _bash(tools: list[_Tool]) -> Iterator[str]:
    after, within = [], [f'        tools:*) found="{" ".join(TOOLS)} help" ;;']
    for tool in tools:
        names = []
        for flag in tool.flags:
            spelt = f"--{flag.name}"
            values = " ".join(f"{spelt}={each}" for each in _choices(flag))
            within.append(f'        {tool.name}:{spelt}=*) found="{values}" ;;')
            if not _is_bare(flag):
                after.append(f'    {tool.name}:{spelt}=*) found="{values}" ;;')
            names.append(spelt if _is_bare(flag) else f"{spelt}=")
        within.append(f'        {tool.name}:-*) found="{" ".join([*names, "--help"])}" ;;')
        files = " files=1" if tool.takes_model else ""
        within.append(f'        {tool.name}:*) found="{" ".join(tool.words)}"{files} ;;')
    aliases = [f"    {short}) tool={name} ;;" for short, name in SHORT.items()]
    cases = {"@ALIASES@": aliases, "@AFTER@": after, "@WITHIN@": within}
    suffixes = " ".join((".tflite", *CONTAINER_SUFFIXES))
    for line in _BASH.replace("@SUFFIXES@", suffixes).splitlines():
        yield from cases.get(line, [line])


# zsh


def _zsh(tools: list[_Tool]) -> Iterator[str]:
    yield "#compdef litegpu"
    yield "_litegpu() {"
    yield "  if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then"
    yield "    local -a tools=("
    yield from (f"      {_quoted(f'{tool.name}:{tool.about}')}" for tool in tools)
    yield "    )"
    yield "    _describe tool tools"
    yield "    return"
    yield "  fi"
    yield "  shift words"
    yield "  (( CURRENT-- ))"
    yield "  case $words[1] in"
    for tool in tools:
        yield f"    {'|'.join(tool.names)})"
        yield "      _arguments \\"
        yield from (f"        {_quoted(_zsh_flag(flag))} \\" for flag in tool.flags)
        yield f"        {_quoted(_zsh_argument(tool))}"
        yield "      ;;"
    yield "  esac"
    yield "}"
    yield '[[ $funcstack[1] == _litegpu ]] && _litegpu "$@" || compdef _litegpu litegpu'


def _zsh_flag(flag: Flag) -> str:
    about = flag.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    values = f"({' '.join(_escaped_colons(_choices(flag)))})" if _choices(flag) else "_files"
    optional, equals = ("::", "=-") if _is_bare(flag) else (":", "=")
    return f"--{flag.name}{equals}[{about}]{optional}{flag.name}:{values}"


def _zsh_argument(tool: _Tool) -> str:
    words = " ".join(_escaped_colons(tool.words))
    if tool.takes_model:
        return f"1:model:{{ _alternative 'models:model:({words})' 'files:file:_files' }}"
    return f"1:argument:({words})" if words else "*:file:_files"


def _escaped_colons(words: Iterable[str]) -> list[str]:
    return [word.replace(":", "\\:") for word in words]


def _quoted(text: str) -> str:
    """Return text in single quotes, for zsh and bash."""
    return "'" + text.replace("'", "'\\''") + "'"


# fish


def _fish(tools: list[_Tool]) -> Iterator[str]:
    yield "complete -c litegpu -n __fish_use_subcommand -f"
    for tool in tools:
        about = _fish_quoted(tool.about)
        yield f"complete -c litegpu -n __fish_use_subcommand -f -a {tool.name} -d {about}"
    for tool in tools:
        start = f"complete -c litegpu -n '__fish_seen_subcommand_from {' '.join(tool.names)}'"
        if tool.words:
            yield f"{start} -f -a {_fish_quoted(' '.join(tool.words))}"
        if tool.takes_model:
            yield f"{start} -f -a '(__fish_complete_suffix .tflite)'"
        for flag in tool.flags:
            takes = "" if _is_bare(flag) else " -r"
            values = f" -f -a {_fish_quoted(' '.join(_choices(flag)))}" if _choices(flag) else " -F"
            yield f"{start} -l {flag.name}{takes}{values} -d {_fish_quoted(flag.help)}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: dict[str, Callable[[list[_Tool]], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
