"""Translates LiteRT's options to litegpu's."""

from __future__ import annotations

import dataclasses
import enum
import logging
from dataclasses import dataclass
from typing import Any

from litegpu.errors import CompiledModelError

_log = logging.getLogger("litegpu")
_HONOURED = {"num_threads", "enforce_f32"}


class HardwareAccelerator(enum.IntFlag):
    """The processors on which a model may run; the values equal those of LiteRT's enum."""

    CPU = 1
    GPU = 2
    NPU = 4


_ALL = HardwareAccelerator.CPU | HardwareAccelerator.GPU | HardwareAccelerator.NPU


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whether the GPU is requested, and the other settings in LiteRT's options."""

    gpu: bool = True
    threads: int | None = None
    float32: bool = False


def wanted(accelerators: int | None, options: Any) -> Wanted:
    """Read LiteRT's `hardware_accel` or `options`; the default is GPU and CPU.

    The function logs a warning for LiteRT settings that litegpu does not have. Raises
    CompiledModelError if both arguments are passed, and if only an NPU is requested.
    """
    if options is None:
        return Wanted(_has_gpu(HardwareAccelerator.GPU if accelerators is None else accelerators))
    if accelerators is not None:
        raise CompiledModelError("Pass either options or hardware_accel, not both.")
    if not hasattr(options, "hardware_accelerators"):
        raise CompiledModelError(
            f"options is a {type(options).__name__}, and for LiteRT's Options alone. Give what is "
            'for litegpu as keywords: precision="fp16".'
        )
    gpu = _has_gpu(options.hardware_accelerators)
    # Read the fields, because the properties would create their values.
    groups = {
        name: value for name, value in vars(options).items() if name.startswith("_") and value
    }
    unused = [
        f"{name.strip('_')}.{field}"
        for name, group in groups.items()
        for field in _changed(group)
        if field not in _HONOURED
    ]
    if unused:
        _log.warning("These options of LiteRT have no meaning for litegpu: %s.", ", ".join(unused))
    cpu, gpu_options = groups.get("_cpu_options"), groups.get("_gpu_options")
    threads = getattr(cpu, "num_threads", 0) or None
    return Wanted(gpu, threads, bool(getattr(gpu_options, "enforce_f32", False)))


def _has_gpu(accelerators: int) -> bool:
    number = accelerators if isinstance(accelerators, int) else 0
    if not 0 < number <= _ALL:
        raise CompiledModelError(
            f"hardware_accel is {accelerators!r}. Use CPU (1), GPU (2), NPU (4) of "
            "HardwareAccelerator, or several of them with |."
        )
    found = HardwareAccelerator(number)
    if found == HardwareAccelerator.NPU:
        raise CompiledModelError(
            "hardware_accel is NPU alone, and litegpu has none. Add GPU, or CPU."
        )
    return HardwareAccelerator.GPU in found


def _changed(group: Any) -> list[str]:
    """Return the names of a dataclass's fields that do not have their default value."""
    default = type(group)()
    names = [field.name for field in dataclasses.fields(group)]
    return [name for name in names if getattr(group, name) != getattr(default, name)]
