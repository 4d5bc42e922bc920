"""`litegpu check` in Python: what a delegate would do with a model, and what would help."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from litegpu import notebook
from litegpu.delegation.delegate import GpuDelegate
from litegpu.delegation.report import DelegationReport, QuantizedSupport
from litegpu.errors import MissingDependencyError, ModelError
from litegpu.options import GpuDelegateKeywords
from litegpu.progress import OnProgress
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
"""The same for models that compute in floats and have quantized weights."""
_BROKEN = (
    "Check that the file is a complete .tflite model, made of operations that the runtime has."
)
_REASONS = 5
"""Number of reasons shown for each mode of quantized tensors; `to_dict` has all."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The result of `check`. `str()` is what `litegpu check` prints, `to_dict()` is for JSON."""

    model: str
    """The source of the model: its path, its zoo name, or the size of its bytes."""
    kind: str | None
    """For example "float32" or "dynamic range"; None if the extra `zoo` is not installed."""
    report: DelegationReport | None
    """Where nodes run, with reasons and advice; None if the delegate was not applied."""
    runtime: str = ""
    """Why the runtime cannot run the model without litegpu; an empty text if it can."""

    @classmethod
    def of(cls, content: bytes, delegate: GpuDelegate, model: str) -> ModelCheck:
        """Apply a delegate to the bytes of a .tflite file, after trying the runtime alone.

        Raises ModelError for other bytes, and if an interpreter of the model crashes.
        """
        trial = try_model(content)
        if trial.fatal:
            raise ModelError(f"{trial.problem} {_BROKEN}")
        try:
            delegated = with_delegate(content, delegate)
        except ModelError as error:
            if not trial.problem:
                raise
            raise ModelError(f"{trial.problem} {_BROKEN}") from error
        found = cls(model, _kind_of(content), delegate.report, trial.problem)
        del delegated
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-serializable data."""
        report = self.report.to_dict() if self.report else None
        runtime = self.runtime or None
        return {"model": self.model, "type": self.kind, "report": report, "runtime": runtime}

    def text(self, width: int | None = None) -> str:
        """Return the report and the advice; rows of the table fit in `width` characters."""
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
    """Return which nodes would run on the GPU, and why others not; memory, and advice.

        print(litegpu.check("model.tflite", precision="fp16"))

    Args:
        model: the path of a .tflite file, `zoo:NAME`, or the bytes of a file.
        on_progress: as for GpuDelegate.
        **options: as for GpuDelegate.

    The model is compiled for the device. It is run only for as long as compiling takes.

    Raises:
        ModelError: there is no such file, or the runtime rejects it.
        OptionsError, UnsupportedDeviceError, MissingDependencyError: as GpuDelegate.
    """
    content = model_bytes(model)
    if isinstance(model, (str, os.PathLike)):
        source = os.fspath(model)
    else:
        source = f"{shown_size(len(content))} of bytes"
    with GpuDelegate(on_progress=on_progress, **options) as delegate:
        return ModelCheck.of(content, delegate, source)


def _kind_of(content: bytes) -> str | None:
    """Return the kind of a model, or None if the package that reads its file is missing."""
    try:
        return kinds.kind_of(content)
    except MissingDependencyError:
        return None


def _how(support: QuantizedSupport, kind: str | None) -> str:
    return (_WEIGHTS_ONLY if kind == kinds.DYNAMIC else _MODES)[support.mode]


def _quantization_lines(report: DelegationReport, kind: str | None) -> Iterator[str]:
    """Yield how a model is quantized, and what the GPU could run in each mode."""
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
    """Yield the advice for each graph of the model, one numbered paragraph each."""
    for number, each in enumerate((report, *report.subgraphs)):
        title = f"advice on subgraph {number}" if number else "advice"
        if not each.advice:
            yield f"\n{title}: none"
            continue
        yield f"\n{title} (times are estimates for a GPU)"
        for index, advice in enumerate(each.advice, start=1):
            start = f"{index:3}. "
            yield paragraph(start + advice.text, " " * len(start))
