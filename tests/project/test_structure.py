"""The shape of the project: layers import one way, and every file is registered."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from litegpu import backends, ops, passes
from litegpu.backends import BACKENDS
from litegpu.backends.base import Backend
from litegpu.ops import all_ops
from litegpu.ops.base import all_facts
from places import ROOT, SOURCE, SUPPORT, TESTS

PACKAGE = SOURCE / "litegpu"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 400

LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "config": set(),
    "version": set(),
    "wording": set(),
    "graph": {"errors"},
    "codegen": {"errors", "graph"},
    "ops": {"errors", "graph", "codegen"},
    "kernels": {"graph", "codegen", "ops"},
    "passes": {"errors", "graph", "ops", "kernels"},
    "backends": {"errors", "config", "version", "codegen"},
    "engine": {
        *(
            "errors",
            "config",
            "version",
            "graph",
            "codegen",
            "ops",
            "kernels",
            "passes",
            "backends",
        ),
    },
    "runtime_abi": {"errors", "wording", "graph"},
    "costs": {"graph", "ops", "wording"},
    "notebook": {"wording"},
    "report": {"costs", "notebook", "wording"},
    "options": {"errors", "engine"},
    "selection": {"graph", "ops", "backends", "runtime_abi", "costs", "report", "options"},
    "advice": {"errors", "graph", "ops", "engine", "report", "selection", "wording"},
    "partition_kernel": {
        *("errors", "graph", "ops", "backends", "engine", "runtime_abi", "wording"),
    },
    "profiling": {
        *("errors", "wording", "backends", "engine", "partition_kernel", "notebook", "report"),
    },
    "delegate": {
        *("errors", "config", "wording", "graph", "ops", "backends", "runtime_abi"),
        *("costs", "report", "options", "selection", "advice", "partition_kernel", "profiling"),
    },
    "litegpu": {
        *("errors", "version", "backends", "costs", "engine", "report", "options", "profiling"),
        "delegate",
    },
    "zoo": {"errors", "graph"},
    "tools": {"errors", "config", "version", "backends", "litegpu", "wording", "zoo", "ops"},
    "__main__": {"tools"},
}
"""What each layer may import: only layers that stand above it in this table."""


def layer_of(path: Path) -> str:
    """Return the layer of a file; the package's own names are the layer `litegpu`."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "litegpu" if first == "__init__" else first


def imports(path: Path) -> Iterator[str]:
    """Yield the layers that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "litegpu":
                first = rest.split(".")[0]
                yield first if first in LAYERS else "litegpu"


def test_every_file_belongs_to_a_layer() -> None:
    assert {layer_of(path) for path in FILES} == set(LAYERS)


def test_the_table_of_layers_goes_one_way() -> None:
    above: set[str] = set()
    for layer, allowed in LAYERS.items():
        assert allowed <= above, f"{layer} stands above what it imports"
        above.add(layer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    layer = layer_of(path)
    assert set(imports(path)) - {layer} <= LAYERS[layer]


INTERFACE = ("program", "base")
"""The modules that say what a backend is."""


def test_the_interface_of_backends_needs_no_backend() -> None:
    for name in INTERFACE:
        path = PACKAGE / "backends" / f"{name}.py"
        assert set(imports(path)) <= {"codegen", "errors", "backends"}
        found = re.findall(r"litegpu\.backends\.(\w+)", path.read_text(encoding="utf-8"))
        assert set(found) <= set(INTERFACE)


# Registries


def modules(folder: str) -> set[str]:
    return {path.stem for path in (PACKAGE / folder).glob("*.py")} - {"__init__"}


def registers_ops(name: str) -> bool:
    """Whether a module of ops makes an op known."""
    tree = ast.parse((PACKAGE / "ops" / f"{name}.py").read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "litegpu.ops.base"
        and {"register", "add"} & {alias.name for alias in node.names}
        for node in ast.walk(tree)
    )


def test_every_op_module_is_imported_and_registered() -> None:
    files = {name for name in modules("ops") if registers_ops(name)}
    assert files == {type(op).__module__.rsplit(".", 1)[1] for op in all_facts()}


def test_every_op_is_found_under_its_name() -> None:
    assert len(list(all_ops())) > 40
    for op in all_ops():
        assert ops.find(op.name) is op
        assert op.max_version >= 1


def test_every_pass_module_is_listed() -> None:
    listed = {
        **passes.BEFORE_NORMALIZE,
        **passes.PASSES,
        **passes.FUSIONS,
    }
    assert set(listed) == modules("passes") - {"base"}
    for name, run in listed.items():
        assert run.__module__ == f"litegpu.passes.{name}"
        assert run.__name__ == name


def test_every_pass_has_a_test_file() -> None:
    tested = {path.stem for path in (TESTS / "passes").glob("test_*.py")}
    assert tested == {f"test_{name}" for name in modules("passes") - {"base"}}


def test_the_architecture_says_what_every_pass_removes() -> None:
    rows = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    named = [word for cell in cells for word in re.findall(r"`(\w+)`", cell)]
    assert modules("passes") - {"base"} <= set(named)


SHARED_BY_BACKENDS = {
    *("base", "calls", "folding", "held", "kept", "limits", "opened", "packages", "private_files"),
    *("process", "program", "shaders", "worker"),
}


def test_every_backend_file_belongs_to_a_registered_backend() -> None:
    for name in modules("backends") - SHARED_BY_BACKENDS:
        module = importlib.import_module(f"{backends.__name__}.{name}")
        own = [
            each
            for each in vars(module).values()
            if isinstance(each, type)
            and each.__module__ == module.__name__
            and issubclass(each, Backend)
        ]
        if name in BACKENDS:
            assert own == [type(BACKENDS[name])]
        else:
            assert not own, f"{name}.py defines a backend under another name than its own"
            assert name.split("_")[0] in BACKENDS


# Tests


OTHER_ROOMS = {"benchmarks", "delegate", "fuzzing", "models", "project", "robustness"}
"""Rooms of tests that are no package of the source: CONTRIBUTING.md says what is in them."""


def test_tests_stand_in_rooms_like_those_of_the_source() -> None:
    places = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    packages = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")}
    assert places - packages == set(map(Path, OTHER_ROOMS))


def test_what_tests_share_is_no_room_of_tests() -> None:
    shared = {path.stem for path in SUPPORT.iterdir()}
    for path in TESTS.rglob("*.py"):
        if SUPPORT in path.parents:
            assert not path.name.startswith("test_"), f"{path} would never run"
        else:
            assert path.name == "conftest.py" or path.name.startswith("test_"), path
            assert path.stem not in shared, f"{path}: which of two would be imported?"


# Rules


def test_files_are_small() -> None:
    lengths = {str(p): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}


def test_environment_variables_are_read_in_one_place() -> None:
    words = {"environ", "environb", "getenv", "getenvb"}
    reading = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in words)
        or (isinstance(node, ast.alias) and node.name in words)
    }
    assert reading == {"config.py"}


def test_plain_import_needs_no_optional_package() -> None:
    optional = ["ai_edge_litert", "tflite_runtime", "pyopencl", "cuda", "flatbuffers", "PIL"]
    optional += ["platformdirs", "rich", "hypothesis", "pytest"]
    code = (
        "import sys; from litegpu import *\n"
        f"loaded = [name for name in {optional} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=SOURCE, check=False)
    assert result.returncode == 0, result.stderr
