"""Links and languages of the documentation site: what is beside docs/ is shown in the repository.

A hook of MkDocs, see mkdocs.yml. On the code host and in an editor, pages link to each other and to
files by relative paths; of a site only docs/ is a part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

_LINK = re.compile(
    r"(\]\(|^\[[^\]]+\]:\s+)(?!https?:|mailto:|#|/)([^)\s#]+)(#[^)\s]*)?", re.MULTILINE
)
LANGUAGES = ("es", "pt", "zh")
"""Folders of docs/ with the pages that are translated."""
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return a page whose links lead to the site, or to the repository."""
    where = PurePosixPath("docs", page.file.src_uri).parent
    if page.file.src_uri == "changelog.md":
        where = PurePosixPath(".")  # its text is that of CHANGELOG.md
        markdown = page_of_the_root(markdown, "CHANGELOG.md")
    return outside_fences(markdown, lambda text: _linked(text, where, page, config["repo_url"]))


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """Let menus and marks of a page be in the language of its text."""
    first = PurePosixPath(page.file.src_uri).parts[0]
    config["theme"]["language"] = first if first in LANGUAGES else "en"
    return context


def page_of_the_root(markdown: str, name: str) -> str:
    """Return what a page shows that has nothing but a mark for a file of the root."""
    text = (Path(__file__).parents[1] / name).read_text(encoding="utf-8")
    return markdown.replace(f"<!-- {name} -->", text)


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Return text in which all but blocks of code is changed."""
    parts, last = list[str](), 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join((*parts, change(markdown[last:])))


def _linked(text: str, where: PurePosixPath, page: Any, repository: str) -> str:
    def link(found: re.Match[str]) -> str:
        before, target, anchor = found[1], found[2], found[3] or ""
        path = _normalized(where / target)
        if path.parts[:1] == ("docs",):
            return f"{before}{_relative(path, page)}{anchor}"
        return f"{before}{repository}/blob/main/{path}{anchor}"

    return _LINK.sub(link, text)


def _normalized(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def _relative(path: PurePosixPath, page: Any) -> str:
    depth = len(PurePosixPath(page.file.src_uri).parts) - 1
    return "../" * depth + str(PurePosixPath(*path.parts[1:]))
