"""Tries the devices of each backend, and compares the results with the CPU's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import util
from typing import Any

from litegpu.backends import BACKENDS, TITLES
from litegpu.host.children import run_module
from litegpu.runtime_abi.kernels import RUNTIMES
from litegpu.tools.doctor.findings import Finding
from litegpu.tools.doctor.libraries import TRIAL
from litegpu.wording import shown_size, shown_time

_PATIENCE_S = 120.0
"""Timeout of a trial in seconds, which includes the compilation of kernels."""
_FAR = 1e-4
"""Maximum relative difference of results; GPU kernels sum in another order than the CPU."""
_AT_ONCE = 4


@dataclass(frozen=True)
class Examined:
    """The findings, the number of devices with correct results, and that of GPUs among them."""

    findings: tuple[Finding, ...]
    usable: int
    gpus: int


def devices() -> Examined:
    """Try every device of every backend, with each installed runtime."""
    runtimes = [name for name in RUNTIMES if _is_installed(name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        listed = pool.map(_listed, BACKENDS)
        found, trials = list[Finding](), list[tuple[str, dict[str, Any], str]]()
        for name, (finding, infos) in zip(BACKENDS, listed, strict=True):
            found += [finding] if finding is not None else []
            trials += [(name, info, runtime) for info in infos for runtime in runtimes]
        outcomes = list(pool.map(_tried, trials))
    right = {
        (name, info["index"]): info["software"]
        for (name, info, _), outcome in zip(trials, outcomes, strict=True)
        if outcome.level == "ok"
    }
    if not right:  # then each missing backend may be the problem
        found = [replace(each, level="problem") for each in found]
    return Examined((*found, *outcomes), len(right), sum(not each for each in right.values()))


def _is_installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ImportError:
        return False


def _listed(name: str) -> tuple[Finding | None, Sequence[dict[str, Any]]]:
    """Return a backend's devices, and findings if the backend has no devices."""
    ended = run_module(TRIAL, ["list", name], _PATIENCE_S)
    status = _last_line(ended.output)
    if ended.status != 0 or status is None:
        text = f"Looking for devices {ended.how()}. {_last_words(ended.errors)}".strip()
        return Finding(TITLES[name], "problem", text, "Update the GPU's driver."), ()
    if not status["devices"]:
        return Finding(TITLES[name], "note", status["reason"], status["remedy"]), ()
    return None, status["devices"]


def _tried(trial: tuple[str, dict[str, Any], str]) -> Finding:
    """Run a small model on a device with a runtime."""
    name, info, runtime = trial
    memory = f", {shown_size(info['memory_bytes'])}" if info["memory_bytes"] else ""
    kind = "software" if info["software"] else "GPU"
    half = ", fp16 arithmetic" if info["half_arithmetic"] else ""
    what = f"{name}:{info['index']} {info['name']} ({kind}{memory}{half}; {info['driver']})"
    what += f", {runtime.split('.')[0]}"
    ended = run_module(TRIAL, ["run", runtime, name, str(info["index"])], _PATIENCE_S)
    facts = _last_line(ended.output)
    if facts is None or ended.status not in (0, 1):
        text = f"{what}: a small model {ended.how()}. {_last_words(ended.errors)}".strip()
        return Finding(TITLES[name], "problem", text, "Update the GPU's driver.")
    if "error" in facts:
        return Finding(
            TITLES[name], "problem", f"{what}: {facts['error']}", facts.get("remedy", "")
        )
    if not facts["difference"] <= _FAR:
        text = f"{what}: a small model's results are {facts['difference']:.1e} from the CPU's."
        remedy = "Update the GPU's driver; until then use another backend."
        return Finding(TITLES[name], "problem", text, remedy)
    return Finding(
        TITLES[name], "ok", f"{what}: correct results, started in {shown_time(facts['start_s'])}"
    )


def _last_line(output: str) -> dict[str, Any] | None:
    """Parse the last line as JSON; drivers and runtimes may print other lines before."""
    lines = output.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return None
    return found or None


def _last_words(errors: str) -> str:
    lines = errors.strip().splitlines()
    return lines[-1] if lines else ""
