"""What an import loads. Modules are counted, not seconds: benchmarks/imports.py has the seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import litegpu
import turns
from every_backend import first_devices
from litegpu import backends
from litegpu.zoo.writer import ModelWriter
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
        ("import litegpu.tasks", 150, ("delegation", "kernels", "passes", "tools")),
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


def test_a_start_from_a_stored_partition_loads_nothing_that_compiles(tmp_path: Path) -> None:
    model = tmp_path / "model.tflite"
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 8))
    writer.output(writer.op("ABS", [x], [(1, 4, 4, 8)]))
    model.write_bytes(writer.build())
    backend, folder = first_devices()[0].backend, str(tmp_path)
    start = f"""
from pathlib import Path
from litegpu import GpuDelegate
from litegpu.runtime_abi.interpreter import interpreter
delegate = GpuDelegate(backend={backend!r}, cache={folder!r}, min_nodes_per_partition=1)
interpreter(Path({str(model)!r}).read_bytes(), delegate).invoke()
assert delegate.report.partitions
"""
    assert {"litegpu.passes", "litegpu.kernels.selector"} <= loaded_by(start)
    loaded = loaded_by(f"{start}assert 'jinja2' not in sys.modules")
    compilers = ("passes", "kernels", "engine.partition", "engine.lowering", "engine.placed")
    assert {f"litegpu.{name}" for name in compilers} & loaded == set()
    assert sum(name.startswith("litegpu.ops") for name in loaded) <= 50, sorted(loaded)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    ("folder", "above"),
    [("tools", "engine.partition"), ("ops", "runtime_abi.reader")],
)
def test_each_module_can_be_imported_first(folder: str, above: str) -> None:
    """No module needs another one to be imported before it, as a circle of imports does.

    Packages of others and layers above, which import nothing of these, are loaded once. Of the ops
    a quarter are tried: test_structure.py looks for circles among all files, too.
    """
    below = SOURCE / "litegpu" / folder
    packages = (each.parent for each in below.rglob("__init__.py"))
    found = packages if folder == "tools" else (each.with_suffix("") for each in below.glob("*.py"))
    code = f"""
import importlib, os, sys
import jinja2, numpy, litegpu.backends, litegpu.codegen.render, litegpu.{above}
assert not any(name.startswith("litegpu.{folder}") for name in sys.modules)
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except Exception as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    names = sorted(".".join(each.relative_to(SOURCE).parts) for each in found)
    if folder == "ops" and not turns.ALL:
        names = [name for name in names if turns.turn(name, 4) == turns.of_commit(4)]
    assert len(names) > 5
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
