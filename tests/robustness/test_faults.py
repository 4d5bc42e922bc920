"""No single failing call leaks memory or prevents later calls."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every_backend import on_backends
from litegpu import GpuDelegate, LitegpuError
from robustness.faults import PLUGS, NthCall, watch_files
from small_models import chain, interpreter, random, reference, run

MODEL, X = chain(["ABS"]), random(1, 4, 4, 4)
EXPECTED = reference(MODEL, X)[0]
STRIDE = int(os.environ.get("FAULT_STRIDE", "13"))
"""Of the calls, this part fails in turn; FAULT_STRIDE=1 tries all, which is done by hand."""
KINDS = {"code": None, "memory": MemoryError, "interrupt": KeyboardInterrupt}


class Life:
    """A delegate and an interpreter with a folder for kernels, from creation to a result."""

    def __init__(self, backend: str, folder: Path) -> None:
        self._backend, self._folder = backend, folder
        self.error: BaseException | None = None
        """What came out."""
        self.cause: BaseException | None = None
        """What the delegate tells."""
        self.result: Any = None

    def live(self) -> None:
        try:
            self._run()
            gc.collect()  # an interrupt while memory is released comes out as soon as it is
        except BaseException as error:
            self.error = error.with_traceback(None)
        gc.collect()

    def _run(self) -> None:
        delegate = GpuDelegate(
            backend=self._backend,
            experimental_flags=8,
            serialization_dir=str(self._folder),
            model_token="m",
        )
        try:
            self.result = run(interpreter(MODEL, delegate), X)[0]
        finally:
            self.cause = delegate.error


@pytest.mark.parametrize("kind", KINDS)
@on_backends(PLUGS)
def test_each_call_fails_once(
    backend: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug = PLUGS[backend]()
    with monkeypatch.context() as patch:
        plug.install(patch, lambda _name: False)
        Life(backend, tmp_path / "first").live()
        before = plug.live()
    for number in range(0, 10_000, STRIDE):
        gate, folder = NthCall(number, KINDS[kind]), tmp_path / str(number)
        life, after = Life(backend, folder), Life(backend, folder)
        with monkeypatch.context() as patch:
            plug.install(patch, gate)
            watch_files(patch, gate)
            life.live()
            gate.end()
            plug.live()  # what is released some time later is to be counted, too
        with monkeypatch.context() as patch:
            plug.install(patch, lambda _name: False)
            when = f"call {number}, {gate.failed}: {life.error!r}, {life.cause!r}"
            check(life, kind, when)
            after.live()
            assert plug.live() == before, when
        assert (after.error, after.cause) == (None, None), when
        np.testing.assert_array_equal(after.result, EXPECTED, err_msg=when)
        if folder.exists():
            assert all(path.suffix for path in folder.iterdir()), f"{when}: {os.listdir(folder)}"
        if not gate.failed:
            assert number > 20, "there is more to fail"
            return


def check(life: Life, kind: str, when: str) -> None:
    """Fail if what came of a fault is neither the right answer nor an error that tells."""
    if life.error is None:
        np.testing.assert_array_equal(life.result, EXPECTED, err_msg=when)
    elif kind == "interrupt":
        assert isinstance(life.error, KeyboardInterrupt), when
    else:
        reported = life.error if isinstance(life.error, LitegpuError) else life.cause
        assert isinstance(reported, (LitegpuError, MemoryError)), when
        assert isinstance(life.error, (LitegpuError, MemoryError, RuntimeError)), when
        assert kind == "memory" or len(str(reported)) > 40, when
