"""Fixtures and assertion rewriting for tests that share code."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import turns

# Mesa's software devices compile each kernel for a few numbers only: optimizing does not pay.
os.environ.setdefault("GALLIVM_PERF", "nopt")
# Neither does it for PoCL; some tests check the optimized code all the same: see `optimized`.
_POCL, _UNOPTIMIZED = "POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable"
if not turns.ALL:
    os.environ.setdefault(_POCL, _UNOPTIMIZED)

# PoCL starts a linker for each kernel, and the default one takes a quarter of all its time: its
# compiler looks here first. Processes that tests start inherit it.
if (gold := shutil.which("ld.gold")) and "COMPILER_PATH" not in os.environ:
    _linker = tempfile.TemporaryDirectory(prefix="litegpu-linker-")
    Path(_linker.name, "ld").symlink_to(gold)
    os.environ["COMPILER_PATH"] = _linker.name

# Tests start cold, and leave nothing in the user's cache folder.
os.environ.setdefault("LITEGPU_CACHE", "0")

# Tests stand in for NVRTC in their own process, and count on its threads.
os.environ.setdefault("LITEGPU_COMPILE_PROCESSES", "0")

# Trained models beside the checkout; the package itself looks nowhere that it was not told.
_MODELS = Path(__file__).parents[2] / "shared" / "models"
if _MODELS.is_dir():
    os.environ.setdefault("LITEGPU_MODELS", str(_MODELS))

# For tests that leave it to the profile how many examples they draw.
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "few", max_examples=25, deadline=None, derandomize=True, suppress_health_check=_SLOW
)
settings.register_profile("many", max_examples=2000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile("few")

pytest.register_assert_rewrite("backend_suite", "small_models")
pytest_plugins = ["every_backend"]

if typing.TYPE_CHECKING:
    from litegpu.backends.opencl.device import OpenCLDevice


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that use a trained model in the JUnit file, for check_real_models.py."""
    if item.get_closest_marker("real_model"):
        item.user_properties.append(("real_model", "yes"))


def pytest_collection_finish() -> None:
    """Exclude the objects of ten thousand tests from garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def forgotten_kernels() -> Iterator[None]:
    """Close WebGPU's devices after each module: Mesa keeps all compiled code of a device."""
    yield
    if opened := sys.modules.get("litegpu.backends.webgpu.device"):
        opened._opened.devices.clear()


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """Fail a test that leaves the logger modified."""
    log = logging.getLogger("litegpu")
    before = (log.level, log.disabled, log.propagate)
    yield
    assert (log.level, log.disabled, log.propagate) == before


@pytest.fixture(autouse=True)
def lines_of_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the width of tables independent of the terminal of the test run."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def partitions_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delegate the small partitions of tests also on real GPUs, as on software devices."""
    from litegpu.delegation.cost_model import CostPolicy

    monkeypatch.setattr(
        "litegpu.delegation.partitioner.CostPolicy",
        lambda costs, *_: CostPolicy(costs, software=True),
    )


@pytest.fixture(autouse=True)
def sound_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify every program that a test has compiled."""
    from litegpu.engine.program import build_program
    from litegpu.engine.verify import verify

    def verified(*args: Any, **options: Any) -> Any:
        built = build_program(*args, **options)
        verify(built)
        return built

    monkeypatch.setattr("litegpu.engine.placed.build_program", verified)


@pytest.fixture(autouse=True)
def optimized(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable PoCL's optimization for tests with the marker `long_kernels`."""
    unoptimized = os.environ.get(_POCL) == _UNOPTIMIZED
    if unoptimized and request.node.get_closest_marker("long_kernels"):
        monkeypatch.delenv(_POCL)


@pytest.fixture
def nothing_of_earlier_tests() -> None:
    """Collect interpreters of earlier tests, for tests that count live objects."""
    gc.collect()


@pytest.fixture
def opencl_device() -> OpenCLDevice:
    """Return the first OpenCL device."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    from litegpu.backends.opencl.device import OpenCLBackend, OpenCLDevice

    opened = OpenCLBackend().open(0)
    assert isinstance(opened, OpenCLDevice)
    return opened
