"""The documentation site: complete, without warnings, and without files of other servers."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from site_links import LANGUAGES, on_page_markdown

import litegpu
from places import ROOT

DOCS = ROOT / "docs"
TRANSLATED = ("index.md", "getting_started.md")
REPOSITORY = "https://github.com/litegpu/litegpu"
_LOADED = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="([^"]+)')
_LANGUAGE_LINK = re.compile(r'href="([^"]*)" hreflang=')
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install 'litegpu[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, f"--site-dir={folder}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
        timeout=200,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        parts = name.parts[:-1] if name.name in ("index", "README") else name.parts
        assert site.joinpath(*parts, "index.html").is_file(), f"{name} is in no nav of mkdocs.yml"


def test_every_public_name_is_described(site: Path) -> None:
    pages = {path: text(path) for path in (site / "api").rglob("*.html")}
    for name in set(litegpu.__all__) - {"__version__"}:
        # Methods are those of classes, which are the only names with capitals.
        heading = re.compile(rf'id="litegpu(\.[a-z_]+)*\.{name}"')
        places = [path for path, page in pages.items() if heading.search(page)]
        assert len(places) == 1, f"litegpu.{name} is described on {len(places)} pages of docs/api"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = _LOADED.findall(text(page))
        assert not [each for each in loaded if html.unescape(each).startswith(("http", "//"))]


@pytest.mark.parametrize("language", ["", *LANGUAGES])
def test_pages_say_in_which_language_they_are(site: Path, language: str) -> None:
    page = text(site / language / "index.html")
    assert f'<html lang="{language or "en"}"' in page
    links = {(site / language / link).resolve() for link in _LANGUAGE_LINK.findall(page)}
    assert links == {(site / other).resolve() for other in ("", *LANGUAGES)}


def test_the_changelog_is_a_page(site: Path) -> None:
    assert "Unreleased" in text(site / "changelog" / "index.html")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", TRANSLATED)
def test_translations_are_whole(language: str, page: str) -> None:
    english, other = text(DOCS / page), text(DOCS / language / page)
    assert _BLOCK.findall(other) == _BLOCK.findall(english)
    for mark in (r"^#+ ", r"^- "):
        found = [len(re.findall(mark, each, re.MULTILINE)) for each in (other, english)]
        assert found[0] == found[1], mark
    links = [re.findall(r"\]\((?:\.\./)?([^)]+)\)", each) for each in (other, english)]
    assert links[0] == links[1]


def linked(markdown: str, page: str) -> str:
    where = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    return on_page_markdown(markdown, where, {"repo_url": REPOSITORY}, None)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("ops.md", "[a](numerics.md#b)", "[a](numerics.md#b)"),
        ("decisions/0001.md", "[a](../ops.md)", "[a](../ops.md)"),
        ("ops.md", "[a](../CONTRIBUTING.md)", f"[a]({REPOSITORY}/blob/main/CONTRIBUTING.md)"),
        ("changelog.md", "[a](docs/ops.md)", "[a](ops.md)"),
        ("ops.md", "[a](https://x.org) [b](#c)", "[a](https://x.org) [b](#c)"),
        ("ops.md", "```\n[a](../b)\n```", "```\n[a](../b)\n```"),
    ],
)
def test_links(page: str, link: str, expected: str) -> None:
    assert linked(link, page) == expected
