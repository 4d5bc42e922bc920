"""`litegpu check` in Python: which nodes a delegate would run, with reasons and advice."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from litegpu.delegation import notebook
from litegpu.delegation.delegate import GpuDelegate
from litegpu.delegation.report import DelegationReport, QuantizedSupport
from litegpu.errors import MissingDependencyError, ModelError
from litegpu.options import GpuDelegateKeywords
from litegpu.progress import OnProgress
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.tools.check.runtime_trial import try_model
from litegpu.tools.console import paragraph
from litegpu.tools.delegation import with_delegate
from litegpu.wording import counted, printable, shown_size
from litegpu.zoo import kinds, model_bytes

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

_MODES = {
    "exact": "in integers, equal to the CPU's results in every bit",
    "float": (
        "in float32, with results rounded to the values that the stored integers can represent"
    ),
}
_WEIGHTS_ONLY = {
    "exact": "float inputs quantized to int8 for quantized weights, with the same sums as the CPU",
    "float": "weights as real numbers",
}
"""The notes by quantization mode for float models with quantized weights."""
_BROKEN = (
    "Check that the file is a complete .tflite model, made of operations that the runtime has."
)
_RESIZABLE = "The file leaves sizes of inputs open: resize the inputs before you allocate."
_REASONS = 5
"""Number of shown reasons per mode of quantized tensors; `to_dict` has all reasons."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The result of `check`.

    `str()` returns the output of `litegpu check`, and `to_dict()` returns data for JSON.
    """

    model: str
    """The source of the model: its path, its zoo name, or the size of its bytes."""
    kind: str | None
    """The kind of model, for example "dynamic range"; None without the extra `zoo`."""
    report: DelegationReport | None
    """Where nodes run, with reasons and advice; None if no delegate was applied."""
    runtime: str = ""
    """Why the runtime cannot run the model without litegpu; empty if the runtime can."""

    @classmethod
    def of(cls, content: bytes, delegate: GpuDelegate, model: str) -> ModelCheck:
        """Apply a delegate to the bytes of a .tflite file, after trying the runtime alone.

        Raises ModelError if the bytes are not a .tflite file, or if an interpreter of the model
        crashes.
        """
        trial = try_model(content)
        if trial.fatal:
            raise ModelError(f"{trial.problem} {_BROKEN}")
        problem = trial.problem
        # Sizes that the file leaves open are 1, which may be too small to allocate anything.
        resizable = bool(problem) and _has_open_sizes(content)
        try:
            delegated = with_delegate(content, delegate, allocate=not resizable)
        except ModelError as error:
            if not problem:
                raise
            raise ModelError(f"{problem} {_BROKEN}") from error
        if resizable:
            problem = f"{_RESIZABLE} {problem}"
        found = cls(model, _kind_of(content), delegate.report, problem)
        del delegated
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-serializable data."""
        report = self.report.to_dict() if self.report else None
        runtime = self.runtime or None
        return {"model": self.model, "type": self.kind, "report": report, "runtime": runtime}

    def text(self, width: int | None = None) -> str:
        """Return the report and the advice; table rows are at most `width` characters long."""
        if self.report is None:
            return "The delegate was not applied: the whole model runs on the CPU."
        lines = [
            self.report.text(width),
            *_quantization_lines(self.report, self.kind),
            *_advice_lines(self.report),
        ]
        if self.runtime:
            lines.append("\n" + paragraph(f"runtime: {printable(self.runtime)}", " " * 2))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return tables for notebooks."""
        kind = f", {self.kind}" if self.kind else ""
        title = notebook.paragraph(f"{printable(self.model)}{kind}", bold=True)
        if self.report is None:
            return title + notebook.paragraph(self.text())
        if self.runtime:
            title += notebook.paragraph(printable(self.runtime))
        quantized = notebook.table(
            ("quantized tensors", ">nodes", "how"),
            [
                (f'quantized="{each.mode}"', str(each.nodes), _how(each, self.kind))
                for each in self.report.quantized
            ],
        )
        return title + self.report._repr_html_() + quantized


def check(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    on_progress: OnProgress | None = None,
    **options: Unpack[GpuDelegateKeywords],
) -> ModelCheck:
    """Return which nodes would run on the GPU, the reasons for other nodes, memory, and advice.

        print(litegpu.check("model.tflite", precision="fp16"))

    Args:
        model: the path of a .tflite file, `zoo:NAME`, or the bytes of a file.
        on_progress: the progress callback, as for GpuDelegate.
        **options: the options of GpuDelegate.

    The function compiles the model for the device. Before that, a separate process runs the model
    once without a delegate.

    Raises:
        ModelError: the file does not exist, or the runtime rejects the model.
        OptionsError, UnsupportedDeviceError, MissingDependencyError: as GpuDelegate.
    """
    content = model_bytes(model)
    if isinstance(model, (str, os.PathLike)):
        source = os.fspath(model)
    else:
        source = f"{shown_size(len(content))} of bytes"
    with GpuDelegate(on_progress=on_progress, **options) as delegate:
        return ModelCheck.of(content, delegate, source)


def _has_open_sizes(content: bytes) -> bool:
    """Whether a model, which the runtime can load, has inputs with sizes of -1."""
    try:
        inputs = interpreter(content, allocate=False).get_input_details()
    except ModelError:
        return False
    return any(-1 in each["shape_signature"] for each in inputs)


def _kind_of(content: bytes) -> str | None:
    """Return the kind of a model, or None if the package that reads its file is missing."""
    try:
        return kinds.kind_of(content)
    except MissingDependencyError:
        return None


def _how(support: QuantizedSupport, kind: str | None) -> str:
    return (_WEIGHTS_ONLY if kind == kinds.DYNAMIC else _MODES)[support.mode]


def _quantization_lines(report: DelegationReport, kind: str | None) -> Iterator[str]:
    """Yield lines about a model's quantization, and what the GPU could run in each mode."""
    if not report.quantized:
        return
    yield f"\nquantized: {kind or _UNKNOWN}"
    for each in report.quantized:
        start = f'  quantized="{each.mode}": '
        line = f"{each.nodes} of {report.total_nodes} nodes, {_how(each, kind)}"
        yield paragraph(start + line, " " * 4)
        reasons = Counter((node.op, node.reason) for node in each.rejected)
        for (op, reason), count in reasons.most_common(_REASONS):
            yield paragraph(f"    {op} ({counted(count, 'node')}): {reason}", " " * 6)
        if len(reasons) > _REASONS:
            more = counted(len(reasons) - _REASONS, "more reason")
            yield f"    {more}: see --json, or to_dict() in Python"


_UNKNOWN = "(pip install 'litegpu[zoo]' to see how)"


def _advice_lines(report: DelegationReport) -> Iterator[str]:
    """Yield the advice for each graph of the model as numbered paragraphs."""
    for number, each in enumerate((report, *report.subgraphs)):
        title = f"advice on subgraph {number}" if number else "advice"
        if not each.advice:
            yield f"\n{title}: none"
            continue
        yield f"\n{title} (times are estimates for a GPU)"
        for index, advice in enumerate(each.advice, start=1):
            start = f"{index:3}. "
            yield paragraph(start + advice.text, " " * len(start))
