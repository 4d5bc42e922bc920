"""The structure of the project: layers import one way, and every file is registered."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import layers
import pytest

from litegpu import backends, passes
from litegpu.backends import BACKENDS
from litegpu.backends.base import Backend
from litegpu.ops.base import all_facts, all_ops, find
from places import SOURCE, SUPPORT, TESTS

PACKAGE = SOURCE / "litegpu"
FILES = sorted(PACKAGE.rglob("*.py"))


def test_no_import_runs_upward() -> None:
    """The table of layers (docs/layers.md) can be drawn, so that each layer needs those above."""
    above: set[str] = set()
    for layer, used in layers.by_layer().items():
        assert used <= above
        above.add(layer)
    assert {"graph", "ops", "engine", "delegation", "tools"} <= above
    assert len(above) <= 32


def test_no_circle_among_files() -> None:
    """Files of one backend name each other's types; no others do."""
    ordered = layers.ordered(layers.by_package(layers.by_file()))
    assert {f"litegpu.backends.{name}" for name in BACKENDS} < set(ordered)
    assert len(ordered) > 400


def test_files_of_a_backend_are_one() -> None:
    graph = {"litegpu.backends.a.x": {"litegpu.backends.a.y", "litegpu.errors"}}
    assert layers.by_package(graph) == {"litegpu.backends.a": {"litegpu.errors"}}


def test_a_circle_is_told() -> None:
    with pytest.raises(graphlib.CycleError, match="cycle"):
        layers.ordered({"above": {"below"}, "below": {"above"}})


def test_imports_count_wherever_they_are(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import a.b\n"
        "from a import c, name\n"
        "def f():\n    from a.late import g\n"
        "if TYPE_CHECKING:\n    import a.d\n"
    )
    assert layers.imported(path, {"a", "a.b", "a.c", "a.d", "a.late"}) == {
        *("a.b", "a.c", "a", "a.d", "a.late"),
    }


def test_a_library_is_no_layer() -> None:
    assert not {"numpy", "jinja2"} & set(layers.by_layer())


INTERFACE = ("program", "constant_blocks", "shared_blocks", "buffers", "execution", "base")
"""The modules that say what a backend is."""


def test_the_interface_of_backends_needs_no_backend() -> None:
    for name in INTERFACE:
        path = PACKAGE / "backends" / f"{name}.py"
        used = layers.imported(path, layers.modules())
        assert set(map(layers.layer_of, used)) <= {
            "codegen",
            "device_model",
            "errors",
            "backends",
            "host",
        }
        found = re.findall(r"litegpu\.backends\.(\w+)", path.read_text(encoding="utf-8"))
        assert set(found) <= {*INTERFACE, "failures"}


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


FAMILIES = {
    "arg_max": "the largest or the smallest",
    "bitcast": "and its step",
    "conv_3d": "there and back",
    "cpu_only": "no kernels: what is known of them is a table",
    "depth_to_space": "there and back",
    "dilate": "elements apart, and space around them",
    "elementwise": "a table of expressions",
    "embedding_lookup_sparse": "and its step",
    "hashtable_lookup": "and its step",
    "landmarks_to_transform_matrix": "two names of one op",
    "lstm_cells": "the two kernels of an LSTM",
    "matrix_diag": "new matrices, or given ones",
    "non_max_suppression": "with and without scores that fall",
    "normalize": "the two kernels of a normalization",
    "pad": "zeros, or any number",
    "pool_2d": "the largest or the average",
    "reduce": "a table of reductions",
    "reduce_window": "with and without padding",
    "rfft2d": "a transform, its steps, and parts of its result",
    "segments": "rows joined by indices",
    "select": "with and without broadcasting",
    "space_to_batch_nd": "there and back",
    "stablehlo_gather": "parts at positions, there and back",
    "suppress_boxes": "the steps of detectors",
    "svdf": "and its step",
    "topk_v2": "and its two steps",
    "transform_tensor_bilinear": "two names of one op",
    "variables": "named values of a model",
    "while_loop": "the nodes of other graphs, once or several times",
}
"""Files of several ops that have one implementation; any other op has a file of its own name."""
TABLES = {"elementwise": "common/functions"}
"""Where the table of a family lies in a file apart."""


def test_every_op_is_found_by_its_name() -> None:
    files: dict[str, set[str]] = {}
    for op in all_facts():
        files.setdefault(type(op).__module__.rsplit(".", 1)[1], set()).add(op.name)
    for file, names in files.items():
        if file in FAMILIES:
            path = PACKAGE / "ops" / f"{TABLES.get(file, file)}.py"
            text = path.read_text(encoding="utf-8")
            assert {name for name in names if name not in text} == set(), file
        else:
            wanted = file.replace("_", "")
            assert [name.lower().replace("_", "") for name in names] == [wanted]
    assert {file for file, names in files.items() if len(names) > 1} == set(FAMILIES)


def test_every_op_is_registered_under_its_name() -> None:
    assert len(list(all_ops())) > 40
    for op in all_ops():
        assert find(op.name) is op
        assert op.max_version >= 1


def test_every_pass_module_has_a_pass() -> None:
    groups = (passes.BEFORE_NORMALIZE, passes.PASSES, passes.FUSIONS)
    assert all(len(group) == len(set(group)) for group in groups)
    listed = {run for group in groups for run in group}
    assert {run.__name__ for run in listed} == modules("passes") - {"base"}
    for run in listed:
        assert run.__module__ == f"litegpu.passes.{run.__name__}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fold_constants", "find_normalization"),  # which reads weights as constants
        (
            "slices_into_gather",
            "slices_before_transpose",
        ),  # which parts transposes from their source
        ("softmax_before_values", "regroup_matrices"),  # which looks at first operands
        ("join_before_sums", "slices_before_transpose"),  # which needs parts alone to be read
        ("remove_identity", "compose_elementwise"),  # which takes elementwise ops only
        ("compose_elementwise", "fuse_elementwise"),  # which hides ops in epilogues
        ("slices_into_index_map", "hoist_elementwise"),  # which moves ops above the joining node
        ("products_into_sums", "fuse_elementwise"),  # which hides products in epilogues
        ("fuse_elementwise", "index_maps_before_permutations"),  # which moves a whole node
        ("sink_permutations", "merge_permutations"),  # which only merges what meets
        ("hoist_elementwise", "fuse_elementwise"),  # which needs its producer next to it
        ("pad_into_window", "index_map_into_window"),  # zeros around an enlarged image
        ("index_map_into_window", "merge_index_maps"),  # which windows cannot absorb
        ("merge_index_maps", "join_channels"),  # which looks one node back
        ("pad_into_operand", "fuse_elementwise"),  # which hides the op that reads the PAD
        ("scale_into_weights", "merge_siblings"),  # which needs the final weights
        ("drop_dead_pixels", "join_products"),  # which no longer sees single products
        ("merge_siblings", "fuse_elementwise"),  # after which siblings differ
        ("fuse_elementwise", "bytes_into_resize"),  # which needs one kernel of casts
        ("fuse_elementwise", "matrix_into_channels"),  # the same
        ("fuse_elementwise", "scale_before_weights"),  # which takes what nothing fused
        ("depthwise_into_pointwise", "expand_into_depthwise"),  # which extends its result
        ("depthwise_into_pointwise", "pool_into_convolution"),
        ("fuse_attention", "split_epilogues"),  # which cuts what the others have joined
    ],
)
def test_passes_run_in_an_order_that_works(first: str, second: str) -> None:
    order = [run.__name__ for run in (*passes.BEFORE_NORMALIZE, *passes.PASSES, *passes.FUSIONS)]
    assert order.index(first) < order.index(second)


def test_every_pass_has_a_test_file() -> None:
    tested = {path.stem for path in (TESTS / "passes").glob("test_*.py")}
    assert tested == {f"test_{name}" for name in modules("passes") - {"base"}}


def test_every_package_of_a_backend_has_a_device_that_is_registered() -> None:
    folders = {path.parent.name for path in (PACKAGE / "backends").glob("*/__init__.py")}
    assert folders == set(BACKENDS)
    for name in folders:
        module = importlib.import_module(f"{backends.__name__}.{name}.device")
        own = [
            each
            for each in vars(module).values()
            if isinstance(each, type)
            and each.__module__ == module.__name__
            and issubclass(each, Backend)
        ]
        assert own == [type(BACKENDS[name])]


# Tests


OTHER_ROOMS = {*("benchmarks", "examples", "fuzzing", "models", "project", "robustness")}
"""Rooms of tests that are no package of the source: CONTRIBUTING.md says what is in them."""


def test_tests_stand_in_rooms_like_those_of_the_source() -> None:
    positions = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    packages = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")}
    assert positions - packages == set(map(Path, OTHER_ROOMS))


def test_what_tests_share_is_no_room_of_tests() -> None:
    shared = {path.stem for path in SUPPORT.iterdir()}
    for path in TESTS.rglob("*.py"):
        if SUPPORT in path.parents:
            assert not path.name.startswith("test_"), f"{path} would never run"
        else:
            assert path.name == "conftest.py" or path.name.startswith("test_"), path
            assert path.stem not in shared, f"{path}: which of two would be imported?"


# Rules


def test_environment_variables_are_read_in_one_place() -> None:
    words = {"environ", "environb", "getenv", "getenvb"}
    reading = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in words)
        or (isinstance(node, ast.alias) and node.name in words)
    }
    # The second file runs in processes that have not imported litegpu.
    assert reading == {"config.py", "acceleration/startup/sitecustomize.py"}


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
