"""Finds out how a model takes samples: whether its first dimension counts them, and how many."""

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
"""The default batch: larger ones save little, need more memory and delay the first result."""
_TRIED_BATCH = 2
"""Multiple of the model's own batch."""
_TOLERANCE = 1e-3
"""Tolerance relative to an output's magnitude: kernels of another batch may sum in another order.
"""


def plan(model: bytes, batch: int = 0, open_model: Open | None = None) -> BatchPlan:
    """Find out on the CPU how a model takes samples.

    The first dimension counts samples if it is the same for all inputs and outputs. Such a model
    takes `batch` samples at once if it can be resized, if its outputs are resized accordingly,
    and if no sample changes the results of another one, which is tested with random inputs.

    Args:
        model: the .tflite file.
        batch: samples at once; 0 chooses a number, or keeps the model's own if that is above 1.
        open_model: creates an interpreter if the CPU alone cannot run the model.

    Raises:
        ModelError: the runtime rejects the model, or it cannot take such a batch.
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
    """A model on the CPU, run once with its own batch."""

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
        """Return a model that takes this many samples at once, or None and the reason.

        Each sample must get the same result as alone, from the unmodified model. Fewer samples
        are sufficient to test that.

        Args:
            form: returns the model, changed for a number of samples.
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
        """Return how samples in a batch differ from each sample alone; empty if they do not."""
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
    """Return an interpreter without memory: on the CPU if that has all operations."""
    threads = runtime.default_threads()
    if open_model is not None:
        try:
            runtime.interpreter(model, threads=threads)
        except ModelError:
            found = open_model(model, Place())
            return found.interpreter if isinstance(found, Opened) else found
    return runtime.interpreter(model, threads=threads, allocate=False)


def _signature(detail: dict[str, Any]) -> list[int]:
    """Return a shape as in the file: -1 is an open size."""
    return [int(size) for size in detail.get("shape_signature", detail["shape"])]


def _core(error: ModelError) -> str:
    """Return the runtime's message without the text around it."""
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
    """Whether both are equal except for the order of sums; NaN equals NaN."""
    if got.shape != want.shape:
        return False
    if got.dtype.kind not in "fc":
        scale = 1 if got.dtype.kind in "iu" else 0  # an integer may be rounded the other way
        return bool(np.all(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= scale))
    largest = float(np.max(np.abs(want), initial=0, where=np.isfinite(want)))
    return bool(np.allclose(got, want, rtol=0, atol=_TOLERANCE * largest, equal_nan=True))
