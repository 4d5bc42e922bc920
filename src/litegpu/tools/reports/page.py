"""Renders a page as one self-contained HTML file, which loads no other files."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import json
import sys
from datetime import datetime
from typing import Any

import jinja2
from markupsafe import Markup

from litegpu.errors import missing_dependency
from litegpu.tools.files import finite, try_to_write, write_bytes
from litegpu.tools.flags import Flag
from litegpu.tools.reports import layout
from litegpu.tools.reports.machine import machine
from litegpu.tools.reports.sections import Page
from litegpu.tools.reports.words import short
from litegpu.version import __version__
from litegpu.zoo import schema

REPORT = Flag(
    *("report", str, None, "write a self-contained HTML report to this file"),
    metavar="FILE",
)


def prepare_report(path: str | None) -> None:
    """Check, before the tool starts its work, whether a report can be written.

    Raises:
        FileError: the file cannot be written.
        MissingDependencyError: a package for drawing, or for reading models, is not installed.
    """
    if path is None:
        return
    try_to_write("report", path)
    _plotly()
    schema.tables()
    layout.check_packages()


def write_report(path: str | None, page: Page) -> None:
    """Write a page to the file of --report. Raises FileError."""
    if path is not None:
        write_bytes("report", path, render(page).encode())


def render(page: Page) -> str:
    """Return a page as HTML, with the facts about this machine at the end.

    Names in a model are untrusted, so the function escapes all text. The page's content security
    policy permits only the scripts in the page, and no loading of files.
    """
    shown = Page(page.tool, short(page.subject, 200), page.verdict, [*page.sections, machine()])
    charts = any(section.kind == "chart" for section in shown.sections)
    scripts = [_plotly()] * charts + [_text("page.js")]
    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return _template().render(
        page=shown,
        policy=_policy(scripts),
        style=Markup(_text("page.css")),
        scripts=[Markup(script) for script in scripts],
        footer=f"litegpu {__version__}, {when}: {short(' '.join(sys.argv[1:]), 1000)}",
    )


def _policy(scripts: list[str]) -> str:
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _plotly() -> str:
    """Return the JavaScript library that draws charts."""
    try:
        offline: Any = importlib.import_module("plotly.offline")
    except ImportError as error:
        raise missing_dependency("plotly", "report", "A report") from error
    script: str = offline.get_plotlyjs()
    return script


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("litegpu.tools.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    found.policies["json.dumps_function"] = _as_json
    return found


def _as_json(content: Any, **options: Any) -> str:
    """Return JSON that browsers can read, without infinite numbers."""
    return json.dumps(finite(content), allow_nan=False, **options)


def _template() -> jinja2.Template:
    return _environment().get_template("page.html")


def _text(name: str) -> str:
    """Return the text of a file that is inserted into the page unchanged."""
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0]
