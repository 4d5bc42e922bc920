"""What an import loads. Modules are counted, not seconds: benchmarks/imports.py has the seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

import litegpu
from litegpu import backends

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


def test_public_names_come_from_where_the_table_says() -> None:
    assert {"__version__", *litegpu._HOMES} == set(litegpu.__all__)
    for name, home in litegpu._HOMES.items():
        assert getattr(litegpu, name) is getattr(sys.modules[home], name)


def test_backends_have_the_titles_of_the_table() -> None:
    assert {name: each.title for name, each in backends.BACKENDS.items()} == backends.TITLES
    assert [each.name for each in backends.BACKENDS.values()] == list(backends.TITLES)
    with pytest.raises(KeyError, match="glide"):
        backends.BACKENDS["glide"]
