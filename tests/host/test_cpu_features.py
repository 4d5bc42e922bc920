"""A warning if the CPU rounds quantized operations differently."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping

import pytest

from litegpu import GpuDelegate
from litegpu.delegation import exactness_notes as exactness
from litegpu.host import cpu_features as host_cpu
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import kinds
from small_models import chain


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Forget what was found out about this CPU, before and after a test."""
    caches = (host_cpu.other_rounding, exactness._log_once)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def pretend(
    monkeypatch: pytest.MonkeyPatch, machine: str, features: Mapping[str, bool] | None = None
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    if features is not None:
        monkeypatch.setattr(host_cpu, "_features", lambda: features)


def test_this_cpu_rounds_as_exact_results_do() -> None:
    """Where it does not, cases of quantized tensors differ from its own results."""
    assert host_cpu.other_rounding() == ""


@pytest.mark.parametrize("machine", ["x86_64", "AMD64", ""])
def test_what_is_not_known_is_taken_for_the_usual(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, machine, {})
    assert host_cpu.other_rounding() == ""


def test_other_processors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "aarch64")
    assert "This CPU is aarch64, so its results" in host_cpu.other_rounding()
    host_cpu.other_rounding.cache_clear()
    pretend(monkeypatch, "x86_64", {"AVX": False})
    assert "This CPU has no AVX, so its results" in host_cpu.other_rounding()


@pytest.mark.parametrize("names", [("no.such_module", "sys"), ()])
def test_numpy_may_keep_it_elsewhere(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host_cpu._features()["AVX"] in (True, False)
    monkeypatch.setattr(host_cpu, "_OF_NUMPY", names)
    assert host_cpu._features() == {}


def said(content: bytes, caplog: pytest.LogCaptureFixture, **options: str) -> tuple[int, bool]:
    """Return how often a log says it after two interpreters, and whether the report does."""
    caplog.clear()
    found = GpuDelegate(**options)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "litegpu"):
        for _ in range(2):
            runtime.interpreter(content, found, builtin_kernels=True)
    assert found.report is not None
    count = sum("may differ from the GPU's" in record.message for record in caplog.records)
    return count, any("may differ from the GPU's" in note for note in found.report.notes)


def test_it_is_said_once_and_in_every_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, "arm64")
    assert said(kinds.sample(kinds.INTEGER), caplog) == (1, True)
    assert said(kinds.sample(kinds.INTEGER), caplog) == (0, True)


def test_it_is_not_said_of_floats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, "arm64")
    assert said(kinds.sample(kinds.INTEGER), caplog, quantized="float") == (0, False)
    assert said(chain(["ABS"]), caplog) == (0, False)
