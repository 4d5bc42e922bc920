"""The delegate's options: those of TensorFlow Lite's C API, and additional ones of litegpu."""

from __future__ import annotations

import dataclasses
import enum
import logging
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from litegpu import config
from litegpu.backends import named
from litegpu.cache.store import CacheFolder, default_folders
from litegpu.engine.choices import Tuning
from litegpu.errors import LitegpuError, OptionsError, did_you_mean
from litegpu.host.user_folders import with_home
from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy, QuantizedMode

_log = logging.getLogger("litegpu")

Precision = Literal["fp32", "fp16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
PrecisionName = Literal["fp32", "float32", "single", "fp16", "float16", "half"]
_PRECISION_NAMES: Mapping[str, Precision] = {
    **dict.fromkeys(("fp32", "float32", "single"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
}
BackendName = (
    Literal[
        "auto", "gpu", "cuda", "opencl", "cl", "webgpu", "vulkan", "metal", "d3d12", "opengl", "gl"
    ]
    | str
)
"""The values of the option `backend`, as a type from which editors complete the names."""
Names = type[enum.IntEnum] | type[enum.IntFlag]


class InferencePreference(enum.IntEnum):
    """How the program will use the delegate, which determines how long its creation may take."""

    FAST_SINGLE_ANSWER = 0
    SUSTAINED_SPEED = 1
    BALANCED = 2


class InferencePriority(enum.IntEnum):
    """The goals of the delegate, such as precision or latency, which the priorities order."""

    AUTO = 0
    MAX_PRECISION = 1
    MIN_LATENCY = 2
    MIN_MEMORY_USAGE = 3


class ExperimentalFlags(enum.IntFlag):
    """The bits of the option `experimental_flags`."""

    NONE = 0
    ENABLE_QUANT = 1
    CL_ONLY = 2
    GL_ONLY = 4
    ENABLE_SERIALIZATION = 8


QUANTIZED_MODES: tuple[QuantizedMode, ...] = ("exact", "float")


class GpuDelegateKeywords(TypedDict, total=False):
    """The keyword arguments of GpuDelegate, or keys of an options dict: see GpuDelegateOptions."""

    is_precision_loss_allowed: int
    inference_preference: InferencePreference | Literal[0, 1, 2]
    inference_priority1: InferencePriority | Literal[0, 1, 2, 3]
    inference_priority2: InferencePriority | Literal[0, 1, 2, 3]
    inference_priority3: InferencePriority | Literal[0, 1, 2, 3]
    experimental_flags: int
    max_delegated_partitions: int | None
    serialization_dir: str | os.PathLike[str] | None
    model_token: str | None
    first_delegate_node_index: int
    last_delegate_node_index: int
    min_nodes_per_partition: int | None
    invoke_timeout_ms: int | None

    cache: bool | str | os.PathLike[str] | None
    unsafe_cache: bool | None
    quick_start: bool | None
    backend: BackendName | None
    device: int | str | None
    precision: PrecisionName | None
    quantized: QuantizedMode | None


_TUNING = {
    InferencePreference.FAST_SINGLE_ANSWER: Tuning.ESTIMATED,
    InferencePreference.SUSTAINED_SPEED: Tuning.MEASURED,
    InferencePreference.BALANCED: Tuning.CACHED,
}
_LAST = 2**31 - 1
_AUTO = InferencePriority.AUTO
_PREFERRED_AFTER = {
    InferencePriority.MIN_LATENCY: (
        InferencePriority.MIN_MEMORY_USAGE,
        InferencePriority.MAX_PRECISION,
    ),
    InferencePriority.MIN_MEMORY_USAGE: (
        InferencePriority.MAX_PRECISION,
        InferencePriority.MIN_LATENCY,
    ),
    InferencePriority.MAX_PRECISION: (
        InferencePriority.MIN_LATENCY,
        InferencePriority.MIN_MEMORY_USAGE,
    ),
}


@dataclass(frozen=True)
class GpuDelegateOptions:
    """All options of GpuDelegate.

    The first block of fields has the names, defaults and rules of TensorFlow Lite's GPU delegate.
    `is_precision_loss_allowed` is -1 (use the priorities), 0 or 1; enums may also be numbers. If
    `max_delegated_partitions` is None, the delegate decides by estimates: each partition that saves
    time runs on the GPU. A software device saves no time, so only the largest partition runs on it.
    A `max_delegated_partitions` below 1 means 1. If `serialization_dir` and `model_token` are set,
    the delegate caches compiled partitions in that folder and loads them at the next start; the
    flag ENABLE_SERIALIZATION is optional. The flag CL_ONLY takes precedence over GL_ONLY. Nodes
    whose number in the report is below `first_delegate_node_index` or above
    `last_delegate_node_index` stay on the CPU, which helps to find a node with wrong results.

    The priorities determine the storage type: float32 if MAX_PRECISION is first; otherwise float16
    for large values, or for all values if MIN_MEMORY_USAGE precedes MIN_LATENCY. Kernels always
    accumulate sums in float32. With float32 storage, the order of the other priorities has no
    effect: the memory plan is always as small as possible.

    `inference_preference` limits the time for the creation of the interpreter. With
    FAST_SINGLE_ANSWER, the delegate selects kernels by estimates. With BALANCED, the delegate
    selects kernels by cached measurements in `serialization_dir`, otherwise by estimates. With
    SUSTAINED_SPEED, the delegate also measures kernels that have no cached measurements. The
    measurement needs seconds, and repeats for new shapes when inputs are resized. The delegate
    never measures kernels on software devices. The delegate runs each partition once when it
    creates the partition, because drivers defer work to the first run.

    If a part of the graph runs on the CPU, the delegate selects the partitions that are faster on
    the GPU by estimate, largest saving first (docs/decisions/0013-partition-cost-model.md). A
    number for `min_nodes_per_partition` replaces the estimate: the delegate selects partitions with
    at least that many nodes, those with the most nodes first. If the GPU can run the whole graph,
    the delegate runs the graph there, unless an estimate says that the GPU is clearly slower. Any
    number for `min_nodes_per_partition` (even one above the number of nodes), a named backend or a
    named device disables that estimate: a whole graph is never too small.

    If `invoke_timeout_ms` is set, an invoke that runs longer raises InvokeTimeoutError, and the
    device counts as lost. If `invoke_timeout_ms` is None, an invoke has no time limit.

    `quantized` selects the arithmetic of quantized tensors with ENABLE_QUANT. "exact" (the default)
    computes in integers, bit-identical to the CPU's kernels; "float" computes in floats, and rounds
    to the grid and range of the stored integers. Without ENABLE_QUANT, all nodes with 8-bit tensors
    stay on the CPU.

    `cache` enables the cache of compiled partitions. If `cache` is True, the cache folder is
    `serialization_dir` if set, otherwise the user's cache folder. If `cache` is a path, the path is
    the cache folder; False disables the cache; None means True, unless LITEGPU_CACHE is 0. The
    cache key contains everything that a partition depends on, such as weights and driver; a
    `model_token` therefore only groups files (docs/cache.md). `unsafe_cache` permits a cache folder
    that belongs to another user or that others may write to. Users who can write to the cache
    folder can execute code in this process, on the GPU and in the driver. If `unsafe_cache` is
    None, the variable LITEGPU_CACHE_UNSAFE decides.

    If `quick_start` is True, litegpu first compiles uncached CUDA kernels with few optimizations,
    and optimizes them during the first invokes. For a second or two, unoptimized kernels run
    several times as long, with the same results. If `quick_start` is None, it applies only with a
    cache, and not with SUSTAINED_SPEED. GpuDelegate.wait_for_best_code waits for the optimized
    kernels.

    `backend`, `device` (a number, a part of the name, "cuda:0" or "cuda") and `precision` override
    the other options; their values are case-insensitive. `precision` is "fp32" or "float32", or
    "fp16", "float16" or "half". `backend="auto"` and `backend="gpu"` mean None. A device number is
    an index among the devices of the selected backend; without a backend, among those of
    `list_devices()`. Raises OptionsError if an option has an invalid value.
    """

    is_precision_loss_allowed: int = -1
    inference_preference: int = InferencePreference.FAST_SINGLE_ANSWER
    inference_priority1: int = InferencePriority.MAX_PRECISION
    inference_priority2: int = InferencePriority.AUTO
    inference_priority3: int = InferencePriority.AUTO
    experimental_flags: int = ExperimentalFlags.ENABLE_QUANT
    max_delegated_partitions: int | None = None
    serialization_dir: str | None = None
    model_token: str | None = None
    first_delegate_node_index: int = 0
    last_delegate_node_index: int = _LAST
    min_nodes_per_partition: int | None = None
    invoke_timeout_ms: int | None = None

    cache: bool | str | None = None
    unsafe_cache: bool | None = None
    quick_start: bool | None = None
    backend: BackendName | None = None
    device: int | str | None = None
    precision: PrecisionName | None = None
    quantized: QuantizedMode | None = None

    def __post_init__(self) -> None:
        """Validate all fields; convert numbers to plain ints, and paths and precisions to text."""
        if isinstance(cache := self.cache, str | os.PathLike):
            object.__setattr__(self, "cache", True)
            folder = cache_folder_of(cache, self.serialization_dir)
            object.__setattr__(self, "serialization_dir", folder)
        for name, names in _INTEGERS.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), names))
        for name in _TEXTS:
            object.__setattr__(self, name, text(name, getattr(self, name)))
        for name in _TRUTHS:
            check_truth(name, getattr(self, name))
        if not isinstance(self.device, str | None):
            object.__setattr__(self, "device", whole("device", self.device))
        for name in _OPTIONAL_INTEGERS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.inference_preference not in set(InferencePreference):
            raise OptionsError(
                f"inference_preference {self.inference_preference} is not one of "
                f"{members(InferencePreference)}."
            )
        if self.invoke_timeout_ms is not None and self.invoke_timeout_ms < 1:
            raise OptionsError(
                "invoke_timeout_ms must be None (no limit) or at least 1 millisecond, not "
                f"{self.invoke_timeout_ms}."
            )
        self._check_nodes()
        if self.experimental_flags & ~sum(ExperimentalFlags):
            raise OptionsError(
                f"experimental_flags {self.experimental_flags} has unknown bits; known are "
                f"{members(ExperimentalFlags)}."
            )
        if self.precision is not None:
            object.__setattr__(self, "precision", precision_of(self.precision))
        if isinstance(self.quantized, str):
            object.__setattr__(self, "quantized", self.quantized.lower())
        if self.quantized not in (None, *QUANTIZED_MODES):
            raise OptionsError(
                f"Unknown way to compute quantized tensors '{self.quantized}'."
                f"{did_you_mean(str(self.quantized), QUANTIZED_MODES)}"
            )
        self.priorities()

    def _check_nodes(self) -> None:
        first, last = self.first_delegate_node_index, self.last_delegate_node_index
        if not 0 <= first <= last:
            raise OptionsError(
                f"No node is both from first_delegate_node_index={first} on and up to "
                f"last_delegate_node_index={last}. Nodes are counted from 0; first must not "
                "exceed last."
            )
        least = self.min_nodes_per_partition
        if least is not None and least < 0:
            raise OptionsError(
                f"min_nodes_per_partition must be None or a number of nodes, not {least}."
            )

    def priorities(self) -> tuple[InferencePriority, InferencePriority, InferencePriority]:
        """Return the three priorities, with AUTO replaced by the priority that it means.

        Raises OptionsError if the priorities are invalid.
        """
        given = (self.inference_priority1, self.inference_priority2, self.inference_priority3)
        if self.is_precision_loss_allowed == 0:
            given = (InferencePriority.MAX_PRECISION, _AUTO, _AUTO)
        elif self.is_precision_loss_allowed != -1:
            given = (InferencePriority.MIN_LATENCY, _AUTO, _AUTO)
        first, second, third = given
        distinct = [priority for priority in given if priority != _AUTO]
        valid = (
            all(priority in set(InferencePriority) for priority in given)
            and first != _AUTO
            and not (second == _AUTO and third != _AUTO)
            and len(set(distinct)) == len(distinct)
        )
        if not valid:
            raise OptionsError(
                f"InferenceOptions are invalid: priorities {tuple(map(int, given))}. The first "
                "must not be AUTO (0), none may appear twice, and after AUTO only AUTO may follow."
            )
        first = InferencePriority(first)
        if second == _AUTO:
            return (first, *_PREFERRED_AFTER[first])
        second = InferencePriority(second)
        if third == _AUTO:
            third = next(p for p in _PREFERRED_AFTER[first] if p != second)
        return first, second, InferencePriority(third)

    def resolved_precision(self) -> Precision:
        """Return "fp32" or "fp16": fp32 only if MAX_PRECISION is the first priority."""
        if self.precision is not None:
            return precision_of(self.precision)
        return "fp32" if self.priorities()[0] == InferencePriority.MAX_PRECISION else "fp16"

    def numeric_policy(self) -> NumericPolicy:
        """Return which values may be rounded: with fp16, all of them if memory precedes latency."""
        policy = FP32
        if self.resolved_precision() == "fp16":
            order = self.priorities()
            memory, latency = InferencePriority.MIN_MEMORY_USAGE, InferencePriority.MIN_LATENCY
            policy = FP16_ALL if order.index(memory) < order.index(latency) else FP16
        return replace(policy, quantized=self.quantized or "exact")

    def tuning(self) -> Tuning:
        """Return how kernels are selected."""
        return _TUNING[InferencePreference(self.inference_preference)]

    def compiles_fast_first(self) -> bool:
        """Return whether the first invokes may run kernels compiled with few optimizations."""
        if self.quick_start is not None:
            return self.quick_start
        return self._is_cached() and self.tuning() is not Tuning.MEASURED

    def timeout_seconds(self) -> float | None:
        """Return the maximum seconds of an invoke; None for no limit."""
        return None if self.invoke_timeout_ms is None else self.invoke_timeout_ms / 1000

    def resolved_backend(self) -> str | None:
        """Return the backend that the options require, or None for any."""
        if named(self.backend):
            return self.backend
        if self.experimental_flags & ExperimentalFlags.CL_ONLY:
            return "opencl"
        return "opengl" if self.experimental_flags & ExperimentalFlags.GL_ONLY else None

    def quantized_mode(self) -> QuantizedMode | None:
        """Return the arithmetic of quantized tensors; None if their nodes stay on the CPU."""
        enabled = self.experimental_flags & ExperimentalFlags.ENABLE_QUANT
        return self.quantized or "exact" if enabled else None

    def unused(self) -> str:
        """Return a sentence about options without effect, because others are missing; or ""."""
        enabled = bool(self.experimental_flags & ExperimentalFlags.ENABLE_SERIALIZATION)
        named = ("serialization_dir", "model_token")
        missing = [name for name in named if not getattr(self, name)]
        requested = enabled or self.unsafe_cache or len(missing) < len(named)
        if not requested or self._is_cached():
            return ""
        if self.cache is False:
            return "Compiled partitions are not cached, because cache is False."
        return (
            "Compiled partitions are not cached, because LITEGPU_CACHE disables the cache. Set "
            "cache=True, or both serialization_dir and model_token."
        )

    def takes_all_nodes(self) -> bool:
        """Return whether the options exclude no node from the GPU by its number."""
        return self.first_delegate_node_index <= 0 and self.last_delegate_node_index >= _LAST

    def _is_cached(self) -> bool:
        """Return whether compiled partitions are cached."""
        return self._cache_request() is not False

    def _cache_request(self) -> bool | None:
        """Return whether the cache is enabled or disabled explicitly; None if it is not."""
        if self.cache is not None:
            return bool(self.cache)
        if self.serialization_dir and self.model_token:
            return True
        return config.cache_setting()

    def cache_folder(self) -> CacheFolder | None:
        """Return the folder of compiled partitions; None if the cache is disabled.

        Raises OptionsError or MissingDependencyError if the folder cannot be determined.
        """
        if not self._is_cached():
            return None
        trusted = self.unsafe_cache
        if trusted is None:
            trusted = config.is_unsafe_cache_allowed()
        own = self.serialization_dir
        folder, *others = [with_home(own)] if own else map(str, default_folders())
        requested = self._cache_request() is not None
        return CacheFolder(folder, self.model_token or "", trusted, requested, (*others,))

    def usable_cache_folder(self) -> CacheFolder | None:
        """Return the result of `cache_folder`; if it raises, log the error and return None.

        The log message is a warning if the user enabled the cache explicitly.
        """
        try:
            return self.cache_folder()
        except LitegpuError as error:
            level = logging.INFO if self._cache_request() is None else logging.WARNING
            _log.log(level, "Compiled partitions are not cached: %s", error)
            return None


_INTEGERS: dict[str, Names | None] = {
    "is_precision_loss_allowed": None,
    "inference_preference": InferencePreference,
    "inference_priority1": InferencePriority,
    "inference_priority2": InferencePriority,
    "inference_priority3": InferencePriority,
    "experimental_flags": ExperimentalFlags,
    "first_delegate_node_index": None,
    "last_delegate_node_index": None,
}
"""Options that are whole numbers, and the enums that name their values."""
_OPTIONAL_INTEGERS = ("max_delegated_partitions", "min_nodes_per_partition", "invoke_timeout_ms")
_TRUTHS = ("cache", "unsafe_cache", "quick_start")
_TEXTS = ("serialization_dir", "model_token", "backend")


def make_options(
    options: GpuDelegateOptions | GpuDelegateKeywords | None, changes: Mapping[str, Any]
) -> GpuDelegateOptions:
    """Return `options` (None, a dict or GpuDelegateOptions) with `changes` applied.

    Raises OptionsError for an unknown name; the message has the closest known name.
    """
    if options is None:
        base: dict[str, Any] = {}
    elif isinstance(options, GpuDelegateOptions):
        base = dataclasses.asdict(options)
    elif isinstance(options, Mapping):
        base = dict(options)
    else:
        raise OptionsError(
            f"options must be GpuDelegateOptions or a dict, not {type(options).__name__}."
        )
    known = [field.name for field in dataclasses.fields(GpuDelegateOptions)]
    for name in (*base, *changes):
        if name not in known:
            raise OptionsError(f"Unknown option '{name}'.{did_you_mean(str(name), known)}")
    return GpuDelegateOptions(**{**base, **changes})


def whole(name: str, value: Any, names: Names | None = None) -> int:
    """Return an option's value as a whole number.

    Raises OptionsError with the names of the option and of its values.
    """
    try:
        return operator.index(value)
    except TypeError:
        kinds = "a device's number or part of its name" if name == "device" else "a whole number"
        known = f" litegpu.{names.__name__} has them: {members(names)}." if names else ""
        raise OptionsError(f"{name} must be {kinds}, not {value!r}.{known}") from None


def text(name: str, value: Any) -> str | None:
    """Return the value of a text option, or None; a path becomes its text.

    Raises OptionsError with the name of the option.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is None or (isinstance(path, str) and "\0" not in path):
        return path
    raise OptionsError(f"{name} must be text without null characters, not {value!r}.")


def members(names: Names) -> str:
    """Return the names of an enum with their numbers."""
    return ", ".join(f"{member.name} ({int(member)})" for member in names)


def precision_of(name: Any) -> Precision:
    """Return the precision that a name or alias denotes.

    Raises OptionsError for an unknown precision.
    """
    found = _PRECISION_NAMES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        hint = did_you_mean(str(name), _PRECISION_NAMES)
        raise OptionsError(f"Unknown precision '{name}'.{hint}")
    return found


def check_truth(name: str, value: Any) -> None:
    """Raise OptionsError unless an option is True, False or None."""
    if not isinstance(value, bool | None):
        folder = " or a folder" if name == "cache" else ""
        raise OptionsError(f"{name} must be True, False or None{folder}, not {value!r}.")


def cache_folder_of(cache: str | os.PathLike[str], other: str | os.PathLike[str] | None) -> str:
    """Return the folder that the option `cache` names.

    Raises OptionsError if the option `other` names another folder.
    """
    folder = text("cache", cache)
    if not folder or not config.is_folder_name(folder):
        check_truth("cache", cache)
    if other is not None and text("serialization_dir", other) != folder:
        raise OptionsError(
            f"cache and serialization_dir name different folders, '{folder}' and '{other}'. Give "
            "one of them."
        )
    return str(folder)
