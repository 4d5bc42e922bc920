"""Runs the trials of `--sweep`: benchmark_model in a separate process for each setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.host.children import Ended, run_module
from litegpu.runtime_abi.interpreter import Output, dequantised
from litegpu.tools.measure import compare

CPU, BUILTIN = "XNNPACK", "built-in kernels"
"""The names of the CPU settings."""
_MIN_US = 0.5
"""The value, in microseconds, that replaces a measured time of 0."""
NO_BATCH = "The model cannot run with batch="
"""The prefix of the error message if a model does not support another batch."""


@dataclass(frozen=True)
class Combination:
    """A setting of backend, precision and batch; an empty precision means a CPU setting.

    With `batch` 0, the batch of the model is unchanged. For a CPU setting, `backend` is the name of
    the setting.
    """

    backend: str
    precision: str
    batch: int

    @property
    def on_gpu(self) -> bool:
        """Whether the setting uses the delegate."""
        return bool(self.precision)

    @property
    def title(self) -> str:
        """Return the name of the setting without the batch."""
        return f"{self.backend} {self.precision}" if self.on_gpu else f"CPU, {self.backend}"

    def flags(self) -> list[str]:
        """Return the setting as flags of benchmark_model."""
        batch = [f"--batch={self.batch}"] if self.batch else []
        if not self.on_gpu:
            return [f"--use_xnnpack={str(self.backend == CPU).lower()}", *batch]
        where = [f"--backend={self.backend}", f"--precision={self.precision}"]
        return ["--use_gpu=true", *where, *batch]


@dataclass(frozen=True)
class Row:
    """The result of a setting: figures, or the reason for a failure.

    Times are in microseconds. `max_error` and `relative_l2` are those of the worst output, relative
    to the reference; None if outputs cannot be compared. `joules` is the energy per item of the
    batch.
    """

    way: Combination
    reason: str = ""
    software: bool = False
    batch: int = 1
    nodes: tuple[int, int] | None = None
    init_us: float = 0.0
    median_us: float = 0.0
    p90_us: float = 0.0
    p99_us: float = 0.0
    max_error: float | None = None
    relative_l2: float | None = None
    joules: float | None = None
    outputs: tuple[Output, ...] = ()

    @property
    def items_per_second(self) -> float:
        """Items of the batch per second, from the median time."""
        return self.batch * 1e6 / self.median_us if self.median_us else 0.0

    @property
    def failed(self) -> bool:
        """Whether the trial failed."""
        return bool(self.reason)


def combinations(
    backends: Sequence[str], precisions: Sequence[str], batches: Sequence[int]
) -> list[Combination]:
    """Return all settings, ordered by batch; the references come first."""
    found = []
    for batch in batches:
        found += [Combination(each, "", batch) for each in (BUILTIN, CPU)]
        found += [Combination(api, half, batch) for api in backends for half in precisions]
    return found


def try_out(
    way: Combination, model: Path, flags: Sequence[str], timeout: float, reference: Row | None
) -> Row:
    """Run benchmark_model on a file; a failure becomes a row with the reason.

    Args:
        way: the setting to try.
        model: the .tflite file; results are written next to it.
        flags: additional flags.
        timeout: the timeout of the process in seconds.
        reference: the row whose outputs are the reference; None if this trial is the reference.
    """
    result, raw = model.with_name("result.json"), model.with_name("outputs.raw")
    for path in (result, raw):
        path.unlink(missing_ok=True)
    files = [f"--graph={model}", f"--json={result}", f"--output_filepath={raw}"]
    ended = run_module(
        "litegpu.tools.cli", ["benchmark_model", *files, *way.flags(), *flags], timeout
    )
    if ended.status != 0:
        return Row(way, _why(ended, timeout))
    found = json.loads(result.read_text(encoding="utf-8"))
    if way.on_gpu and not (found["nodes"] and found["nodes"]["gpu"]):
        return Row(way, _warning(ended) or "No node of the model runs on the GPU.")
    outputs = _outputs(found["outputs"], raw.read_bytes())
    error = (None, None) if reference is None else _errors(outputs, reference.outputs)
    times = found["inference_us"]
    batch = way.batch or _own_batch(found["inputs"])
    energy = found["energy"] and found["energy"]["joules"]
    return Row(
        way,
        software=bool(found["device"] and found["device"]["software"]),
        batch=batch,
        nodes=(found["nodes"]["gpu"], found["nodes"]["all"]) if found["nodes"] else None,
        init_us=found["init_us"],
        median_us=max(times["p50"], _MIN_US),
        p90_us=times["p90"],
        p99_us=times["p99"],
        max_error=error[0],
        relative_l2=error[1],
        joules=None if energy is None else energy / batch,
        outputs=outputs if reference is None else (),
    )


def _own_batch(inputs: Sequence[dict[str, Any]]) -> int:
    """Return the batch of an unmodified model: the first size that all inputs share."""
    first = {each["shape"][0] if each["shape"] else 1 for each in inputs}
    return int(first.pop()) if len(first) == 1 else 1


def _why(ended: Ended, timeout: float) -> str:
    if ended.status is None:
        return f"The benchmark process was stopped after {timeout:g} s without a result."
    said = [line for line in ended.errors.splitlines() if line.startswith("ERROR: ")]
    if ended.status in (1, 2) and said:
        return said[0].removeprefix("ERROR: ")
    last = [line for line in ended.errors.splitlines() if line.strip()][-1:]
    return f"It {ended.how()}." + "".join(f" Its last output: '{line}'." for line in last)


def _warning(ended: Ended) -> str:
    """Return the last warning that is more specific than TensorFlow Lite's general one."""
    lines = ended.output.splitlines()
    return next((x.removeprefix("WARN: ") for x in lines[::-1] if x.startswith("WARN: ")), "")


def _outputs(details: Sequence[dict[str, Any]], content: bytes) -> tuple[Output, ...]:
    """Return the outputs described in the JSON file, without outputs that are not numeric."""
    found, position = [], 0
    for each in details:
        kind = np.dtype(each["type"])
        if kind.kind not in "biuf":
            break
        size = kind.itemsize * int(np.prod(each["shape"], dtype=np.int64))
        values = np.frombuffer(content[position : position + size], kind).reshape(each["shape"])
        found.append(Output(each["name"], dequantised(values, each)))
        position += size
    return tuple(found)


def _errors(
    outputs: Sequence[Output], reference: Sequence[Output]
) -> tuple[float | None, float | None]:
    """Return the largest absolute difference and the largest relative L2 error of all outputs."""
    shapes = [[each.values.shape for each in side] for side in (outputs, reference)]
    if not outputs or shapes[0] != shapes[1]:
        return None, None
    found = [compare(got, want) for got, want in zip(outputs, reference, strict=True)]
    worst = np.max([(each.max_abs, each.relative_l2) for each in found], axis=0)  # propagates NaN
    return float(worst[0]), float(worst[1])
