"""Write the pages of docs/ that follow from the code and from other pages.

Usage: write_docs.py. Run it in the environment that litegpu is installed in.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import layers

from litegpu.config import VARIABLES
from litegpu.graph import DType
from litegpu.kernels.selector import IMPLEMENTATIONS
from litegpu.ops import attributes
from litegpu.ops.base import Op, Values, all_ops
from litegpu.ops.checks import MAX_RANK
from litegpu.ops.exact.refused import Refused
from litegpu.ops.types import MOVED, STORABLE, Types
from litegpu.passes import BEFORE_NORMALIZE, FUSIONS, PASSES
from litegpu.runtime_abi.params import PARAMS

DOCS = Path(__file__).parents[1] / "docs"
_NOTE = "<!-- Written by scripts/write_docs.py from the code: change it there, not here. -->"


DOCUMENTED = frozenset(
    {
        *("ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "EXP"),
        *("FULLY_CONNECTED", "LOGICAL_AND", "LOGISTIC", "LSTM", "MAXIMUM", "MAX_POOL_2D"),
        *("MINIMUM", "MUL", "PAD", "PRELU", "RELU", "RELU6", "RESHAPE", "RESIZE_BILINEAR"),
        *("SOFTMAX", "STRIDED_SLICE", "SUB", "TRANSPOSE_CONV"),
    }
)
"""What TensorFlow Lite's own GPU delegate documents."""


def _versions(op: Op) -> str:
    highest = f"1–{op.max_version}" if op.max_version > 1 else "1"
    if op.quantized_version > op.max_version:
        return f"{highest}, quantized –{op.quantized_version}"
    return highest


def ops_page() -> str:
    """Return the table of operations."""
    ops = [op for op in all_ops() if not op.internal]
    rows = [
        (
            f"**{op.name}**" if op.name in DOCUMENTED else op.name,
            _versions(op),
            _types(op),
            _attributes(op),
            _quantized(op),
            " ".join((inspect.getdoc(type(op)) or "").split()),
        )
        for op in ops
    ]
    return f"""{_NOTE}

# Operations

The {len(ops)} operations that litegpu runs. The {len(DOCUMENTED)} in bold are those that
TensorFlow Lite documents for its GPU delegate. `litegpu check MODEL` says of each node of a model
whether it runs on the GPU and, if not, why, with the attribute or tensor and its value.

What holds for all of them:

- **Versions**: a node of a higher version stays on the CPU. Those that only quantization brings, up
  to *quantized*, are accepted with `ENABLE_QUANT` in `experimental_flags` (the default).
- **Ranks**: computed tensors have 0 to {MAX_RANK} dimensions of any size from 1 on, batches
  included, where the operation itself asks for no other rank (images of convolutions, pools and
  resizes have 4).
- **Types**: those of the computed inputs, in their order (the last entry holds for all further
  ones), then those of the outputs. *any* is float32, int32, int64 and bool; *same* is the type of
  what goes in; inputs of one rule agree in it. Integers are computed as integers:
  [decision 4](decisions/0004-element-types.md). Constants may be float16. SHAPE, RANK, FILL, RANGE
  and operations on constants are worked out beforehand and stand in nobody's way.
- **Attributes**: the values that are handled; others leave the node to the CPU.
- **Quantized**: *exact* operations compute int8 and uint8 tensors with a scale in their integers,
  equal to the CPU's built-in kernels in every bit ([numerics](numerics.md#quantized-tensors)). With
  `quantized="float"` all operations that take float32 run them as real numbers.
- **Precision**: every operation runs in fp32 and fp16. fp32 is IEEE float32 throughout, within 1e-5
  of the CPU's built-in kernels (relative L2). In fp16 large values and weights are stored as half,
  and sums are still added in float32: within 1e-2. What only moves elements, bools and indices are
  exact in both.
- **Backends**: every operation runs on CUDA, OpenCL, WebGPU and OpenGL alike, from one set of
  kernel templates; CUDA has faster kernels of its own for some ([backends](backends.md)).
- **As on the CPU**: where its documentation leaves something open, litegpu does what the runtime's
  built-in CPU kernels do, special values included: the same cases run on both.

{_table(("operation", "versions", "types", "attributes", "quantized", "what is handled"), rows)}"""


def _quantized(op: Op) -> str:
    """Return whether quantized nodes are computed, or moved, in their integers."""
    moved = any(DType.INT8 in rule.dtypes for rule in op.takes) and op.name != "CAST"
    computed = op.exact is not None and not isinstance(op.exact, Refused)
    return "exact" if computed or moved else "–"


def _types(op: Op) -> str:
    given = [_type(rule) for rule in op.takes]
    return f"{', '.join(given)} → {'same' if op.gives is None else _type(op.gives)}"


def _type(rule: Types) -> str:
    names = sorted(dtype.name.lower() for dtype in rule.dtypes)
    known = {STORABLE.dtypes: "any", MOVED.dtypes: "any/int8/uint8/int16"}
    return known.get(rule.dtypes) or "/".join(names)


def _attributes(op: Op) -> str:
    """Return the attributes with their values, those with the same values together."""
    names: dict[str, list[str]] = {}
    for name, kind in PARAMS.get(op.name, ()):
        rule = attributes.values(op, name)
        text = "true, false" if rule == Values() and kind == "bool" else str(rule)
        names.setdefault(text, []).append(f"`{name}`")
    return "<br>".join(f"{', '.join(same)}: {text}" for text, same in names.items()) or "–"


def environment_page() -> str:
    """Return the table of environment variables."""
    return f"""{_NOTE}

# Environment variables

What an option says goes before what the environment says.

{_table(("variable", "meaning"), ((f"`{name}`", text) for name, text in VARIABLES.items()))}"""


def decisions_page() -> str:
    """Return the index of decisions, with what became of each."""
    return f"""{_NOTE}

# Decisions

What was decided, measured and dropped. A decision is in force unless its line `Status:` says more.
The numbers 7 to 9 were never given.

{_table(("number", "decision", "status"), map(_decision, sorted(DOCS.glob("decisions/0*.md"))))}"""


def _decision(path: Path) -> tuple[str, str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    number, _, title = lines[0].removeprefix("# ").partition(". ")
    statuses = [line.removeprefix("Status: ") for line in lines if line.startswith("Status: ")]
    return number, f"[{title}]({path.name})", statuses[0].rstrip(".") if statuses else "in force"


def layers_page() -> str:
    """Return the table of layers, as the imports draw them."""
    files = layers.modules()
    rows = [
        (
            f"`{layer}`",
            _summary(files["litegpu" if layer == layers.PACKAGE else f"litegpu.{layer}"]),
            ", ".join(f"`{name}`" for name in sorted(used)) or "–",
        )
        for layer, used in layers.by_layer().items()
    ]
    return f"""{_NOTE}

# Layers

What each folder and file of `src/litegpu` is for, and what it imports: only what stands above it.
A line that changes here is a new dependency, or one that is gone. How they work together:
[architecture](architecture.md).

{_table(("layer", "what it is", "imports"), rows)}"""


def passes_page() -> str:
    """Return the passes in the order in which they run, each with its summary."""
    files = layers.modules()
    before, after, fusions = (
        _table(
            ("pass", "what it does"),
            ((f"`{run.__name__}`", _summary(files[run.__module__])) for run in phase),
        )
        for phase in (BEFORE_NORMALIZE, PASSES, FUSIONS)
    )
    return f"""{_NOTE}

# Passes

The graph rewrites of a partition, in the order in which they run. Comments in `passes/__init__.py`
say why. With `LITEGPU_DEBUG=1` each pass logs what it changed, and why it left alone what looked
like its pattern. How they are used: [architecture](architecture.md).

## On the model's own operations

{before}
## After the operations are normalized

{after}
## Where a kernel of the device accepts what they make

{fusions}"""


def kernels_page() -> str:
    """Return what computes each kind of spec, in the order in which they are asked."""
    tables = []
    for spec, ways in IMPLEMENTATIONS.items():
        rows = (
            (
                f"`{each.name}`",
                each.backend or "all",
                "general" if each.general else "special",
                _first(each.__doc__),
                str(each.example),
            )
            for each in ways
        )
        head = ("kernel", "devices", "sort", "what it does", "selected for, as an example")
        tables.append(f"## {spec.__name__}\n\n{_first(spec.__doc__)}\n\n{_table(head, rows)}")
    return f"""{_NOTE}

# Kernels that are selected

What computes each kind of spec, in the order in which it is asked. A special kernel that tells its
clocks is taken where it should be so much faster than the general ones; a general one takes what
is left. The examples are run by the tests; those of CUDA hold for an H100 at fp16. How kernels are
selected: [architecture](architecture.md#how-kernels-are-selected).

{chr(10).join(tables)}"""


def glossary_page() -> str:
    """Return the classes that the layers speak in, each with its summary and its file."""
    rows = []
    for module, path in layers.modules().items():
        if layers.layer_of(module) in _SPOKEN:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            rows += [(node, module) for node in tree.body if isinstance(node, ast.ClassDef)]
    words = [
        (f"`{node.name}`", _first(ast.get_docstring(node)), f"`{module.removeprefix('litegpu.')}`")
        for node, module in sorted(rows, key=lambda row: row[0].name.lower())
        if not node.name.startswith("_")
    ]
    return f"""{_NOTE}

# Glossary

The nouns of the code: every class of the layers between a model and a device. Words that are not
classes are in [architecture](architecture.md#words).

{_table(("word", "meaning", "module"), words)}"""


_SPOKEN = ("graph", "codegen", "kernels", "ops", "passes", "backends", "engine", "runtime_abi")


def _summary(path: Path) -> str:
    return _first(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))


def _first(docstring: str | None) -> str:
    """Return the first paragraph, in one line and as a cell of a table."""
    paragraph = (docstring or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


PAGES: Mapping[str, Callable[[], str]] = {
    "ops.md": ops_page,
    "environment.md": environment_page,
    "decisions/README.md": decisions_page,
    "layers.md": layers_page,
    "passes.md": passes_page,
    "kernels.md": kernels_page,
    "glossary.md": glossary_page,
}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
