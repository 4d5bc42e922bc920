"""Compiled templates are cached for all processes, and loaded only if their source is equal."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pytest

from litegpu.codegen.compiled_templates import CompiledTemplates
from litegpu.codegen.sources import templates


@pytest.fixture(autouse=True)
def _written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


rendering = importlib.import_module("litegpu.codegen.render")


def render(folder: Path, text: str = "{{ x }} of {{ y }}", options: str = "") -> tuple[str, int]:
    """Return what a template makes in a new environment, and how often that has compiled it."""
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({"some": text}),
        bytecode_cache=CompiledTemplates(options, folder),
    )
    compiled = 0
    compile_it = environment._compile

    def counted(source: str, filename: str) -> object:
        nonlocal compiled
        compiled += 1
        return compile_it(source, filename)

    environment._compile = counted  # type: ignore[method-assign, assignment]
    return environment.get_template("some").render(x=1, y=2), compiled


def test_a_template_is_compiled_once(tmp_path: Path) -> None:
    folder = tmp_path / "__pycache__"
    assert [render(folder) for _ in range(3)] == [("1 of 2", 1), ("1 of 2", 0), ("1 of 2", 0)]
    (path,) = folder.iterdir()
    assert path.suffix == ".pyc", "what is no source of litegpu"


def test_another_text_and_other_options_are_compiled(tmp_path: Path) -> None:
    render(tmp_path)
    assert render(tmp_path, "{{ y }}") == ("2", 1)
    assert render(tmp_path, "{{ y }}") == ("2", 0)
    assert render(tmp_path, "{{ y }}", "trimmed") == ("2", 1)
    assert len([*tmp_path.iterdir()]) == 2


def test_what_is_damaged_is_replaced(tmp_path: Path) -> None:
    render(tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        assert render(tmp_path) == ("1 of 2", 1)
        assert path.read_bytes() == whole


def test_nothing_is_kept_where_nothing_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "no folder"
    file.touch()
    assert render(file) == ("1 of 2", 1)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert render(tmp_path / "new") == ("1 of 2", 1)
    assert [*tmp_path.iterdir()] == [file]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jinja2.bccache.Bucket, "write_bytecode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_templates_are_cached_next_to_modules() -> None:
    folder = CompiledTemplates("")._folder
    assert "kernels" in folder.parts


def test_all_templates_are_compiled_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    environment = SimpleNamespace(get_template=found.append)
    monkeypatch.setattr(rendering, "_environment", lambda: environment)
    rendering.compile_templates()
    assert set(found) == set(templates())
