"""Names and texts use the terms of the field: this module rejects words of a list."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from places import ROOT, SOURCE

WORDS: Mapping[str, str] = {
    **{"settle": "synchronize, release", "settled": "synchronized", "examine": "check"},
    **{"judge": "check, evaluation", "judged": "checked", "worth": "pays"},
    **{"maker": "producer", "makers": "producers", "made": "output, result"},
    **{"held": "operand, or what it is", "kept": "cached, remaining, or what it is"},
    **{"told": "selected, reported, requested", "asked": "queried, requested"},
    **{"taken": "selected, delegated, occupied", "shuffled": "swizzled, permuted"},
    **{"lending": "zero-copy binding", "half_from": "fp16_storage_threshold"},
    **{"exact_weights": "keep_fp32_weights", "recording": "executable", "recordings": "executable"},
    **{"dispatches": "launches", "side_by_side": "min_blocks", "raise4": "MAX_NAN4"},
    **{"at_least4": "MAX4", "hangs_on_place": "depends_on_position"},
}
"""Names that say little, or something else than elsewhere in the field, and what to say instead."""
PROSE: Mapping[str, str] = {
    **{"beside": "next to, in addition to", "told": "given, reported", "tells": "reports, shows"},
    **{"hurry": "quickly compiled", "anew": "again", "whoever": "those who", "kin": "similar"},
    **{"kept": "cached, preserved, or what it is", "sits": "is stored", "lies": "is stored"},
    **{"refused": "rejected", "seldom": "rarely", "somebody": "another user, or who it is"},
    **{"in turns": "alternating", "by turns": "alternating", "hangs on": "depends on"},
    **{"of ours": "of litegpu", "unless told": "by default", "as they lie": "in place"},
    **{"what it takes": "its cost, or its input", "looked at": "checked", "maker": "vendor"},
}
"""Words and phrases of pages that a reader stumbles over, and what to say instead."""
IN_CODE = (
    *("beside", "hurry", "anew", "whoever", "in turns", "by turns", "kin", "sits", "seldom"),
    *("somebody", "of ours", "unless told", "as they lie", "what it takes", "maker"),
)
"""Those of PROSE that docstrings, comments, logs and errors of the package do not use either."""
IN_TEXTS = rf"\b({'|'.join(IN_CODE)})\b"
PARTS: Mapping[str, str] = {
    **dict.fromkeys(("seat", "seats", "seated"), "slot"),
    **dict.fromkeys(("hurry", "hurried"), "fast_compile"),
    **{"unkept": "not_cached", "beside": "other, next_to", "worth": "pays", "told": "reported"},
    **{"asked": "requested"},
}
"""Words that are no part of a name in the package either, and what to say instead."""
PYTHON = sorted(
    path
    for folder in ("src", "tests", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
TEMPLATES = sorted(
    path for kind in ("*.jinja", "*.cuh") for path in (SOURCE / "litegpu").rglob(kind)
)

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/*/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md" and not path.read_text("utf-8").startswith("<!-- Generated")
)
"""Written by hand; those that are generated consist of docstrings."""


@functools.cache
def names_of(text: str) -> frozenset[str]:
    """Return what a module calls its functions, classes, variables, fields and arguments."""
    return frozenset(_names(text))


def _names(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def names_in_template(text: str) -> set[str]:
    """Return the words of a template's code, its comments left out."""
    without = re.sub(r"\{#.*?#\}|/\*.*?\*/|^\s*//[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"\w+", without))


def old(names: set[str]) -> dict[str, str]:
    """Return those names that are old words, with what to say instead."""
    return {
        name: WORDS[word] for name in sorted(names) if (word := name.strip("_").lower()) in WORDS
    }


def stumbling(text: str) -> dict[str, str]:
    """Return words of a page that are not plain; code and the targets of links do not count."""
    prose = re.sub(
        r"^```.*?^```|^ {4}[^\n]*|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE
    )
    words = " ".join(re.findall(r"[\w'-]+", prose.lower()))
    return {word: instead for word, instead in PROSE.items() if f" {word} " in f" {words} "}


def old_parts(name: str) -> dict[str, str]:
    """Return the old words among the parts of a name, with what to say instead."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {word: PARTS[word] for part in parts if (word := part.lower()) in PARTS}


def texts_of(text: str) -> Iterator[str]:
    """Yield a module's docstrings, other strings and comments."""
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield token.string


@pytest.mark.parametrize("text", ["def made(): ...", "class Maker: ...", "x.held = 1", "_kept = 1"])
def test_old_words_are_found(text: str) -> None:
    assert old(set(names_of(text)))


def test_old_words_are_found_in_templates() -> None:
    text = "{# held #}\n  // kept\n    float4 made = {{ maker / 2 // 3 + told }};"
    assert set(old(names_in_template(text))) == {"made", "maker", "told"}


def test_no_old_word_is_a_name() -> None:
    found: dict[str, str] = {}
    for path in PYTHON:
        name = path.relative_to(ROOT).as_posix()
        words = old(set(names_of(path.read_text(encoding="utf-8"))))
        found |= {f"{name}: {word}": instead for word, instead in words.items()}
    assert found == {}


def test_limits_are_named_max_and_min() -> None:
    other = re.compile(r"_?(MOST|LARGEST|LEAST|FEWEST|SMALLEST)_")
    names = {each for path in PYTHON for each in names_of(path.read_text(encoding="utf-8"))}
    assert "_MAX_SEARCHED" in names
    assert sorted(filter(other.match, names)) == []


@pytest.mark.parametrize(
    ("name", "word"),
    [("TakenSeat", "seat"), ("_SEATS", "seats"), ("is_asked", "asked"), ("NVRTCHurry", "hurry")],
)
def test_parts_of_names_are_found(name: str, word: str) -> None:
    assert set(old_parts(name)) == {word}


def test_no_old_word_is_a_part_of_a_name_in_the_package() -> None:
    found: dict[str, Mapping[str, str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name in (path.stem, *names_of(path.read_text(encoding="utf-8"))):
            if words := old_parts(name):
                found[f"{path.relative_to(ROOT).as_posix()}: {name}"] = words
    assert found == {}


def test_words_in_texts_are_found() -> None:
    text = 'def f():\n    """Lies beside."""\n    log(f"a {hurry} anew")  # whoever\n'
    words = re.findall(IN_TEXTS, " ".join(texts_of(text)))
    assert set(words) - {"hurry"} == {"beside", "anew", "whoever"}


def test_the_texts_of_the_package_use_plain_words() -> None:
    found: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for text in texts_of(path.read_text(encoding="utf-8")):
            words = re.findall(IN_TEXTS, text, re.IGNORECASE)
            name = path.relative_to(ROOT).as_posix()
            found |= {f"{name}: {word}": PROSE[word.lower()] for word in words}
    assert found == {}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_old_word_is_a_name_in_kernels(path: Path) -> None:
    assert old(names_in_template(path.read_text(encoding="utf-8"))) == {}


def test_words_that_are_not_plain_are_found() -> None:
    text = "It lies\nbeside [it](told.md), `kept` by turns.\n```\nanew\n```\n"
    assert set(stumbling(text)) == {"lies", "beside", "by turns"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_use_plain_words(path: Path) -> None:
    assert stumbling(path.read_text(encoding="utf-8")) == {}
