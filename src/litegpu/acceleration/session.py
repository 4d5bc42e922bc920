"""Active accelerations: the options of new delegates, and a record of each accelerated model."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from litegpu.delegation.delegate import GpuDelegate
from litegpu.errors import LitegpuError
from litegpu.options import GpuDelegateOptions
from litegpu.progress import OnProgress
from litegpu.runtime_abi.file import ModelSource
from litegpu.runtime_abi.kernels import is_own_interpreter

if TYPE_CHECKING:
    from litegpu.delegation.report import DelegationReport

_log = logging.getLogger("litegpu")
_RECORDS = 100
_lock = threading.RLock()
_active: list[Acceleration] = []


@dataclass(frozen=True)
class AcceleratedModel:
    """A model whose interpreter was created during an acceleration.

    `model` is the path of the file, or "a model in memory". `device` is the title of the device.
    `report` lists the nodes that run on the GPU. If litegpu could not create a delegate, `device`
    is empty, `report` is None, and `error` is the reason.
    """

    model: str
    device: str = ""
    report: DelegationReport | None = None
    error: str = ""


class Acceleration:
    """The result of litegpu.accelerate, which ends at `close()` or at the end of a `with` block."""

    def __init__(
        self,
        options: GpuDelegateOptions,
        on_progress: OnProgress | None,
        uninstall: Callable[[], None],
    ) -> None:
        self.options = options
        """The options of the delegates."""
        self._on_progress = on_progress
        self._uninstall = uninstall
        self._models: deque[AcceleratedModel] = deque(maxlen=_RECORDS)

    @property
    def models(self) -> tuple[AcceleratedModel, ...]:
        """The models of the last 100 interpreters that used this acceleration, oldest first."""
        return tuple(self._models)

    def close(self) -> None:
        """End the acceleration for interpreters that are created later. Repeated calls do nothing.

        If no other acceleration is active, the changed classes get back their own methods.
        """
        with _lock:
            if self in _active:
                _active.remove(self)
                if not _active:
                    self._uninstall()

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "active" if self in _active else "closed"
        return f"<Acceleration: {state}, {len(self._models)} models>"

    def start(self, install: Callable[[], None]) -> None:
        """Make this acceleration the current one; `install` changes the classes."""
        with _lock:
            if not _active:
                install()
            _active.append(self)

    def delegate(self, model: ModelSource | None) -> GpuDelegate | None:
        """Return a new delegate for an interpreter of `model`.

        Returns None, after a warning, if litegpu cannot create the delegate.
        """
        try:
            return GpuDelegate(self.options, model=model, on_progress=self._on_progress)
        except LitegpuError as error:
            name = _name(model)
            _log.warning("The interpreter of %s runs on the CPU: %s", name, error)
            self._models.append(AcceleratedModel(name, error=str(error)))
            return None

    def add(self, model: ModelSource | None, delegate: GpuDelegate) -> None:
        """Record a model whose interpreter has applied `delegate`."""
        title = delegate.device.title
        self._models.append(AcceleratedModel(_name(model), title, delegate.report))


def current() -> Acceleration | None:
    """Return the acceleration of an interpreter that is being created; None for litegpu's own."""
    if is_own_interpreter():
        return None
    with _lock:
        return _active[-1] if _active else None


def _name(model: ModelSource | None) -> str:
    return "a model in memory" if model is None or isinstance(model, bytes) else str(model)
