"""Versions, addresses, extras and commands in the files around the code are correct."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from litegpu.tools.cli import TOOLS
from litegpu.version import __version__
from places import ROOT

ADDRESS = "https://github.com/litegpu/litegpu"
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAY_MORE = {"release": {"id-token"}, "deploy": {"id-token", "pages"}}
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS = set(
    re.findall(r"^(\w+) = \[", PYPROJECT.split("[project.optional-dependencies]")[1], re.M)
)


def load(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: it comes with pre-commit")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_the_citation_has_the_version_and_the_address() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert f"\nrepository-code: {ADDRESS}\n" in citation


def test_the_version_is_stated_once_and_announced() -> None:
    assert 'dynamic = ["version"]' in PYPROJECT
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"This becomes version {__version__}." in changes or f"## [{__version__}]" in changes


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "README.md", ".github/ISSUE_TEMPLATE/config.yml"]
)
def test_there_is_one_address(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.findall(r"https://github\.com/[\w-]+/litegpu(?![\w-])", text)
    assert set(found) == {ADDRESS}


@pytest.mark.parametrize("path", DOCKERFILES, ids=names(DOCKERFILES))
def test_dockerfiles_name_what_there_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= EXTRAS
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M)
        for source in line.split()[:-1]
    ]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied and all((ROOT / source).exists() and f"!{source}" in ignored for source in copied)
    assert f"docker/{path.name}" in (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")


def test_there_are_dockerfiles_for_both() -> None:
    assert names(DOCKERFILES) == ["cpu.Dockerfile", "cuda.Dockerfile"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=names(WORKFLOWS))
def test_workflows_may_little_and_name_what_there_is(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name, job in workflow["jobs"].items():
        assert set(job.get("permissions", {})) <= MAY_MORE.get(name, set())
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            assert re.search(r"@(v\d+|release/v\d+)$", step.get("uses", "@v1")), step
            run = step.get("run", "")
            for target in re.findall(r"\bmake (\w+)", run):
                assert re.search(rf"^{target}:", makefile, re.M), f"no make {target}"
            for file in re.findall(r"\b(?:scripts|tests)/[\w/]+\.py", run):
                assert (ROOT / file).exists(), file


def test_every_python_that_is_promised_is_tested() -> None:
    (workflow,) = [path for path in WORKFLOWS if path.stem == "tests"]
    promised = re.findall(r"Python :: (3\.\d+)", PYPROJECT)
    assert load(workflow)["jobs"]["linux"]["strategy"]["matrix"]["python"] == promised


def test_issues_ask_for_commands_that_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in TEMPLATES)
    requested = set(re.findall(r"`litegpu (\w+)", text))
    assert {"doctor", "inference_diff", "profile"} <= requested <= set(TOOLS)


def test_every_template_is_a_form() -> None:
    forms = [load(path) for path in TEMPLATES if path.stem != "config"]
    assert len(forms) == 3
    for form in forms:
        assert {"name", "description", "body"} <= form.keys()
        ids = [field["id"] for field in form["body"]]
        assert len(ids) == len(set(ids)) and "doctor" in ids
