"""Determines the batching of a model: whether the first axis is a batch, and its size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.pictures.images import random_tensor
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.engines.batching import rewritten
from litegpu.tools.engines.jobs import Arrays, BatchPlan, Opened, Place, Tensor

Open = Callable[[bytes, Place], Any]

AUTOMATIC_BATCH = 16
"""The default batch; larger batches gain little, need more memory and delay the first result."""
_TRIED_BATCH = 2
"""The tested batch as a multiple of the model's original batch."""
_TOLERANCE = 1e-3
"""Tolerance relative to an output's magnitude; another batch may change the order of sums."""


def plan(model: bytes, batch: int = 0, open_model: Open | None = None) -> BatchPlan:
    """Determine the batching of a model by runs on the CPU.

    The first axis is the batch if its size is the same for all inputs and outputs. The batch can be
    changed if inputs and outputs can be resized, and if no sample changes the results of another
    one. The function tests these conditions with random inputs.

    Args:
        model: the .tflite file.
        batch: the number of samples per run; 0 for the default, or for the model's batch if it is
            above 1.
        open_model: creates an interpreter for a model that the CPU alone cannot run.

    Raises:
        ModelError: the runtime rejects the model, or the model cannot have this batch.
    """
    own = _Trial(model, open_model)
    refusal = "" if own.batched else "the inputs and outputs differ in the first dimension"
    wanted, found = batch or (AUTOMATIC_BATCH if own.batch == 1 else own.batch), model
    if own.batched and wanted != own.batch:
        for form in (lambda _: model, lambda size: rewritten(model, own.batch, size)):
            form_found, refusal = own.resized(form, wanted)
            if form_found is not None:
                found = form_found
                break
    possible = (own.batch if refusal else wanted) if own.batched else 1
    if batch and possible != batch:
        raise ModelError(
            f"The model cannot run with batch={batch}: {refusal}. "
            f"Leave --batch out, or use --batch={possible}."
        )
    return BatchPlan(own.inputs, own.outputs, possible, own.batched, found, refusal)


class _Trial:
    """A model on the CPU, run once with its original batch."""

    def __init__(self, model: bytes, open_model: Open | None) -> None:
        self._open_model = open_model
        self._interpreter = _open(model, open_model)
        self._interpreter.allocate_tensors()
        inputs = self._interpreter.get_input_details()
        values = self._run([random_tensor(each) for each in inputs])
        outputs = self._interpreter.get_output_details()
        first = {value.shape[:1] for value in values}
        first |= {tuple(int(size) for size in each["shape"][:1]) for each in inputs}
        # A first dimension that depends on data counts something else.
        free = {_signature(each)[:1] == [-1] for each in inputs}
        decided = any(_signature(each)[:1] == [-1] for each in outputs) and True not in free
        self.batched = len(first) == 1 and () not in first and bool(inputs) and not decided
        self.batch = next(iter(first))[0] if self.batched else 1
        skip = int(self.batched)
        self.inputs = tuple(_tensor(each, tuple(each["shape"])[skip:], skip) for each in inputs)
        self.outputs = tuple(
            _tensor(each, value.shape[skip:], skip)
            for each, value in zip(outputs, values, strict=True)
        )

    def resized(self, form: Callable[[int], bytes], batch: int) -> tuple[bytes | None, str]:
        """Return a model with this batch, or None and the reason.

        The result of each sample must be equal to the result of the unmodified model for that
        sample alone. The test uses a smaller batch.

        Args:
            form: returns the model, modified for a batch.
            batch: the number of samples.
        """
        few = min(batch, _TRIED_BATCH * self.batch)
        try:
            if wrong := self._difference(self._open(form(few), few), few):
                return None, wrong
            found = form(batch)
            self._open(found, batch)
        except ModelError as error:
            return None, _core(error)
        return found, ""

    def _open(self, model: bytes, batch: int) -> Any:
        found = _open(model, self._open_model)
        runtime.set_batch(found, batch)
        return found

    def _difference(self, resized: Any, batch: int) -> str:
        """Return how batched results differ from those of single samples; empty if equal."""
        random = np.random.default_rng(0)
        details = resized.get_input_details()
        noise = [random_tensor(each, int(random.integers(1 << 30))) for each in details]
        together = self._run(noise, resized)
        for tensor, values in zip(self.outputs, together, strict=True):
            if values.shape[:1] != (batch,) or (
                values.shape[1:] != tensor.shape and not tensor.dynamic
            ):
                return f"the output '{tensor.name}' then has the shape {list(values.shape)}"
        for start in range(0, batch - self.batch + 1, self.batch):
            part = slice(start, start + self.batch)
            alone = self._run([values[part] for values in noise])
            if not all(map(_close, [values[part] for values in together], alone)):
                return "samples of a batch then change each other's results"
        return ""

    def _run(self, inputs: Arrays, interpreter: Any = None) -> Arrays:
        used = interpreter or self._interpreter
        runtime.set_inputs(used, inputs)
        used.reset_all_variables()
        runtime.invoke(used)
        return [used.get_tensor(each["index"]) for each in used.get_output_details()]


def _open(model: bytes, open_model: Open | None) -> Any:
    """Return an interpreter without allocated tensors, on the CPU if the CPU has all ops."""
    threads = runtime.default_threads()
    if open_model is not None:
        try:
            runtime.interpreter(model, threads=threads)
        except ModelError:
            found = open_model(model, Place())
            return found.interpreter if isinstance(found, Opened) else found
    return runtime.interpreter(model, threads=threads, allocate=False)


def _signature(detail: dict[str, Any]) -> list[int]:
    """Return a shape as in the file; -1 is a dynamic size."""
    return [int(size) for size in detail.get("shape_signature", detail["shape"])]


def _core(error: ModelError) -> str:
    """Return the runtime's message without prefix and suffix."""
    text = " ".join(str(error).split())
    for remedy in (" Leave --batch out", " Use a model that can"):
        text = text.split(remedy)[0]
    return text.partition(": ")[2].rstrip(".") or text.rstrip(".")


def _tensor(detail: dict[str, Any], shape: tuple[int, ...], skip: int) -> Tensor:
    known = _signature(detail)
    dynamic = -1 in known[skip:] or len(known) != len(detail["shape"])
    scale, zero = detail["quantization"]
    return Tensor(
        detail["name"],
        tuple(int(size) for size in shape),
        np.dtype(detail["dtype"]),
        (float(scale), int(zero)),
        dynamic,
    )


def _close(got: Any, want: Any) -> bool:
    """Whether two arrays are equal within the tolerance; NaN equals NaN."""
    if got.shape != want.shape:
        return False
    if got.dtype.kind not in "fc":
        scale = 1 if got.dtype.kind in "iu" else 0  # an integer may be rounded the other way
        return bool(np.all(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= scale))
    largest = float(np.max(np.abs(want), initial=0, where=np.isfinite(want)))
    return bool(np.allclose(got, want, rtol=0, atol=_TOLERANCE * largest, equal_nan=True))
