"""What an import loads. Modules are counted, not seconds: benchmarks/imports.py has the seconds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import litegpu
from litegpu import backends
from places import SOURCE

LOADED = "print(*(name for name in sys.modules if name.partition('.')[0] == 'litegpu'))"


def loaded_by(statement: str) -> set[str]:
    """Return the modules of litegpu that a fresh process has loaded after a statement."""
    code = f"import sys\n{statement}\n{LOADED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "limit", "absent"),
    [
        ("import litegpu", 2, ("backends", "delegation")),
        ("import litegpu; litegpu.OptionsError", 3, ("backends", "options")),
        ("from litegpu import list_devices", 30, ("delegation", "engine", "ops", "runtime_abi")),
        ("from litegpu import GpuDelegate", 60, ("ops", "kernels", "passes", "tools")),
        ("import litegpu.tools.cli", 12, ("backends", "delegation", "ops")),
    ],
)
def test_an_import_loads_what_it_needs(statement: str, limit: int, absent: tuple[str, ...]) -> None:
    loaded = loaded_by(statement)
    assert len(loaded) <= limit, sorted(loaded)
    assert {f"litegpu.{name}" for name in absent} & loaded == set()


def test_a_named_backend_loads_no_other() -> None:
    names = {f"litegpu.backends.{name}.device" for name in backends.BACKENDS}
    loaded = loaded_by("from litegpu.backends import BACKENDS; BACKENDS['opencl']")
    assert names & loaded == {"litegpu.backends.opencl.device"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_each_package_of_tools_can_be_imported_first() -> None:
    """No package needs another one to be imported before it, as a circle of imports does."""
    parents = sorted(each.parent for each in (SOURCE / "litegpu" / "tools").rglob("__init__.py"))
    code = """
import importlib, os, sys
import litegpu
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(name, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    names = [".".join(each.relative_to(SOURCE).parts) for each in parents]
    command = [sys.executable, "-c", code, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_public_names_come_from_where_the_table_says() -> None:
    assert {"__version__", *litegpu._HOMES} == set(litegpu.__all__)
    for name, home in litegpu._HOMES.items():
        assert getattr(litegpu, name) is getattr(sys.modules[home], name)


def test_backends_have_the_titles_of_the_table() -> None:
    assert {name: each.title for name, each in backends.BACKENDS.items()} == backends.TITLES
    assert [each.name for each in backends.BACKENDS.values()] == list(backends.TITLES)
    with pytest.raises(KeyError, match="glide"):
        backends.BACKENDS["glide"]
