"""Assigns GPUs to workers."""

from __future__ import annotations

import contextlib

from litegpu import backends, config
from litegpu.errors import LitegpuError, OptionsError
from litegpu.tools.engines.jobs import Place, Settings


def places(wanted: Settings, backend: str | None, device: int | str | None) -> list[Place]:
    """Return the GPU of each worker: all GPUs of the best API, or the requested ones.

    Without a GPU, the default is one worker on the delegate's default device.

    Raises:
        OptionsError: a worker would need more than one GPU.
    """
    refuse_several_gpus(wanted)
    gpus = [] if device not in (None, "") or config.text("LITEGPU_DEVICE") else gpus_of(backend)
    # A single GPU is found by the delegate itself, or through another API if that one fails.
    here = [Place(each.backend, each.index) for each in gpus] if len(gpus) > 1 else [Place()]
    sharing = max(int(1 / wanted.gpus_per_worker), 1) if gpus else 1
    count = wanted.workers or len(here) * sharing
    return [here[number % len(here)] for number in range(count)]


def gpus_of(backend: str | None) -> list[backends.DeviceInfo]:
    """Return the GPUs of `backend`, or of the best API with GPUs, without software devices."""
    backend = backend or config.text("LITEGPU_BACKEND")
    with contextlib.suppress(LitegpuError):  # opening the delegate reports the error
        found = backends.devices_of(backend) if backend else backends.list_devices()
        gpus = [each for each in found if not each.software]
        return [each for each in gpus if each.backend == gpus[0].backend]
    return []


def refuse_several_gpus(wanted: Settings) -> None:
    """Raise OptionsError if the settings request more than one GPU per worker."""
    if wanted.gpus_per_worker > 1:
        raise OptionsError(
            f"--gpus_per_worker={wanted.gpus_per_worker:g}: a delegate uses one GPU. Give 1, or a "
            "smaller number if workers share a GPU."
        )
