"""The trials of `--sweep`: each setting runs benchmark_model in a separate process."""

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
"""Settings of the CPU."""
_LEAST_US = 0.5
"""Times are integers in microseconds: 0 stands for less than one."""
NO_BATCH = "The model cannot run with batch="
"""The start of the reason if a model cannot have another batch."""


@dataclass(frozen=True)
class Combination:
    """One setting of everything; without a precision it is one of the CPU, named by `backend`.

    `batch` 0 is the model's own.
    """

    backend: str
    precision: str
    batch: int

    @property
    def on_gpu(self) -> bool:
        """Whether it uses the delegate."""
        return bool(self.precision)

    @property
    def title(self) -> str:
        """Return its name without its batch."""
        return f"{self.backend} {self.precision}" if self.on_gpu else f"CPU, {self.backend}"

    def flags(self) -> list[str]:
        """Return its flags of benchmark_model."""
        batch = [f"--batch={self.batch}"] if self.batch else []
        if not self.on_gpu:
            return [f"--use_xnnpack={str(self.backend == CPU).lower()}", *batch]
        where = [f"--backend={self.backend}", f"--precision={self.precision}"]
        return ["--use_gpu=true", *where, *batch]


@dataclass(frozen=True)
class Row:
    """The result of a combination: figures, or the reason why there are none.

    Times are in microseconds. `max_error` and `relative_l2` are those of the worst output, against
    the reference; None if nothing can be compared. `joules` are per item of the batch.
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
        """Items of the batch per second, by the median."""
        return self.batch * 1e6 / self.median_us if self.median_us else 0.0

    @property
    def failed(self) -> bool:
        """Whether there are no figures."""
        return bool(self.reason)


def combinations(
    backends: Sequence[str], precisions: Sequence[str], batches: Sequence[int]
) -> list[Combination]:
    """Return all combinations, batch by batch, the references first."""
    found = []
    for batch in batches:
        found += [Combination(each, "", batch) for each in (BUILTIN, CPU)]
        found += [Combination(api, half, batch) for api in backends for half in precisions]
    return found


def try_out(
    way: Combination, model: Path, flags: Sequence[str], timeout: float, reference: Row | None
) -> Row:
    """Run benchmark_model on a file; whatever goes wrong becomes a row with the reason.

    Args:
        way: what to try.
        model: the .tflite file; results are written next to it.
        flags: further flags.
        timeout: seconds until it counts as hanging.
        reference: what its outputs are compared with; None: they are the reference.
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
        median_us=max(times["p50"], _LEAST_US),
        p90_us=times["p90"],
        p99_us=times["p99"],
        max_error=error[0],
        relative_l2=error[1],
        joules=None if energy is None else energy / batch,
        outputs=outputs if reference is None else (),
    )


def _own_batch(inputs: Sequence[dict[str, Any]]) -> int:
    """Return the batch of an unmodified model: the common first dimension of all inputs."""
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
    """Return the last warning that is more specific than the original's usual one."""
    lines = ended.output.splitlines()
    return next((x.removeprefix("WARN: ") for x in lines[::-1] if x.startswith("WARN: ")), "")


def _outputs(details: Sequence[dict[str, Any]], content: bytes) -> tuple[Output, ...]:
    """Return the outputs described in the JSON file; those that are not numbers are omitted."""
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
    """Return the largest difference and the largest relative distance of all outputs."""
    shapes = [[each.values.shape for each in side] for side in (outputs, reference)]
    if not outputs or shapes[0] != shapes[1]:
        return None, None
    found = [compare(got, want) for got, want in zip(outputs, reference, strict=True)]
    worst = np.max([(each.max_abs, each.relative_l2) for each in found], axis=0)  # propagates NaN
    return float(worst[0]), float(worst[1])
