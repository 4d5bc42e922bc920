"""The delegates of TensorFlow Lite's tools, selected by flags such as `--use_gpu=true`.

The table PROVIDERS has one row per kind of delegate: the flags, and the function that creates the
delegate.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from litegpu import (
    ExperimentalFlags,
    GpuDelegate,
    InferencePreference,
    InferencePriority,
    config,
)
from litegpu.backends import BACKENDS
from litegpu.errors import (
    DelegateLibraryError,
    MissingDependencyError,
    OptionsError,
    UnsupportedDeviceError,
)
from litegpu.options import QUANTIZED_MODES, GpuDelegateOptions
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import start_bar
from litegpu.tools.delegation import DELEGATE_FLAGS, given_options
from litegpu.tools.flags import Flag, at_least, whole
from litegpu.tools.lines import info, warn
from litegpu.tools.registrar import foreign
from litegpu.tools.stats import shown_value

_LAST = 2**31 - 1

DEFAULT_FLAGS = (
    Flag("num_threads", at_least(-1), -1, "number of CPU threads; -1: selected by the runtime"),
    Flag(
        "max_delegated_partitions",
        whole,
        0,
        "maximum number of partitions on a delegate; 0: the minimum, 1",
    ),
    Flag(
        *("min_nodes_per_partition", whole, 0),
        "minimum nodes of a partition on a delegate; 0 or less: set by the delegate",
    ),
    Flag(
        "delegate_serialize_dir",
        str,
        "",
        "folder of the cache of compiled kernels; needs --delegate_serialize_token",
    ),
    Flag("delegate_serialize_token", str, "", "name of the model in the cache"),
    Flag("first_delegate_node_index", at_least(0), 0, "nodes before this one stay on the CPU"),
    Flag("last_delegate_node_index", at_least(0), _LAST, "nodes after this one stay on the CPU"),
)
GPU_FLAGS = (
    Flag("use_gpu", bool, False, "apply the GPU delegate"),
    Flag(
        *("gpu_precision_loss_allowed", bool, False),
        "allow half precision; TensorFlow Lite's tool allows it by default",
    ),
    Flag("gpu_experimental_enable_quant", bool, True, "run quantized models on the GPU as well"),
    Flag(
        *("gpu_quantized", str, "", "quantized tensors: exact (default; as the CPU) or float"),
        known=QUANTIZED_MODES,
    ),
    Flag(
        *("gpu_inference_for_sustained_speed", bool, False),
        "measure which kernels are fastest: slower start, faster runs",
    ),
    Flag(
        *("gpu_backend", str, "", "use this GPU API only: cl, gl, cuda or webgpu"),
        known=tuple(BACKENDS),
    ),
    Flag(
        *("gpu_unsafe_cache", bool, False),
        "use the cache even if other users may write to it (you trust them)",
    ),
    Flag(
        "gpu_invoke_loop_times", whole, -1, "ignored: for special builds of TensorFlow Lite's tool"
    ),
    Flag("gpu_wait_type", str, "", "for iOS only: passive, active, do_not_wait or aggressive"),
)
EXTERNAL_FLAGS = (
    Flag("external_delegate_path", str, "", "shared library of another delegate"),
    Flag(
        "external_delegate_options",
        str,
        "",
        "options of the external delegate: key:value;key:value",
    ),
)
XNNPACK_FLAGS = (
    Flag(
        *("use_xnnpack", bool, False),
        "run nodes that no delegate accepts with XNNPACK (the runtime's default)",
    ),
    Flag("xnnpack_force_fp16", bool, False, "let XNNPACK compute in half precision"),
)
NNAPI_FLAGS = (
    Flag("use_nnapi", bool, False, "apply the NNAPI delegate (Android)"),
    Flag("nnapi_execution_preference", str, "", "fast_single_answer, sustained_speed or low_power"),
    Flag("nnapi_execution_priority", str, "", "default, low, medium or high"),
    Flag("nnapi_accelerator_name", str, "", "name of NNAPI's device"),
    Flag("disable_nnapi_cpu", bool, True, "never use NNAPI's own CPU"),
    Flag("nnapi_allow_fp16", bool, False, "let NNAPI compute in half precision"),
    Flag(
        "nnapi_allow_dynamic_dimensions",
        bool,
        False,
        "let NNAPI resize tensors without compiling again",
    ),
    Flag("nnapi_use_burst_mode", bool, False, "keep NNAPI ready for consecutive invokes"),
    Flag("nnapi_support_library_path", str, "", "NNAPI's support library"),
)
HEXAGON_FLAGS = (
    Flag("use_hexagon", bool, False, "apply the Hexagon delegate (Android)"),
    Flag("hexagon_lib_path", str, "/data/local/tmp", "folder of Hexagon's libraries"),
    Flag("hexagon_profiling", bool, False, "measure operations on Hexagon"),
)
COREML_FLAGS = (
    Flag("use_coreml", bool, False, "apply the Core ML delegate (Apple)"),
    Flag("coreml_version", whole, 0, "version of Core ML to convert for; 0: the newest"),
)
OPTION_FLAGS = tuple(
    each for each in DELEGATE_FLAGS if each.name not in {flag.name for flag in DEFAULT_FLAGS}
)
"""Flags named like options of litegpu's delegate, without those shared with other delegates."""
_SAME_AS = {
    "gpu_backend": ("backend",),
    "gpu_quantized": ("quantized",),
    "gpu_unsafe_cache": ("unsafe_cache",),
    "gpu_precision_loss_allowed": (
        *("precision", "is_precision_loss_allowed"),
        *("inference_priority1", "inference_priority2", "inference_priority3"),
    ),
    "gpu_inference_for_sustained_speed": ("inference_preference",),
    "gpu_experimental_enable_quant": ("experimental_flags",),
    "delegate_serialize_dir": ("serialization_dir",),
    "delegate_serialize_token": ("model_token",),
}
"""The options of litegpu's delegate that TensorFlow Lite's flags set."""
_UNKNOWN_HERE = ("gpu_invoke_loop_times", "gpu_wait_type")
"""Flags that TensorFlow Lite has only in builds for other platforms."""

LOG_NAMES = {
    "num_threads": "#threads used for CPU inference",
    "max_delegated_partitions": "Max number of delegated partitions",
    "min_nodes_per_partition": "Min nodes per partition",
    "delegate_serialize_dir": "Directory for delegate serialization",
    "delegate_serialize_token": "Model-specific token/key for delegate serialization.",
    "first_delegate_node_index": "Index of the first node that could be delegated",
    "last_delegate_node_index": "Index of the last node that could be delegated",
    "use_gpu": "Use gpu",
    "gpu_precision_loss_allowed": "Allow lower precision in gpu",
    "gpu_experimental_enable_quant": "Enable running quant models in gpu",
    "gpu_inference_for_sustained_speed": "Prefer maximizing the throughput in gpu",
    "gpu_backend": "GPU backend",
    "gpu_quantized": "Quantized tensors in gpu",
    "gpu_unsafe_cache": "Folders that others write to allowed in gpu",
    "external_delegate_path": "External delegate path",
    "external_delegate_options": "External delegate options",
    "use_nnapi": "Use NNAPI",
    "nnapi_execution_preference": "NNAPI execution preference",
    "nnapi_execution_priority": "Model execution priority in nnapi",
    "nnapi_accelerator_name": "NNAPI accelerator name",
    "disable_nnapi_cpu": "Disable NNAPI cpu",
    "nnapi_allow_fp16": "Allow fp16 in NNAPI",
    "nnapi_allow_dynamic_dimensions": "Allow dynamic dimensions in NNAPI",
    "nnapi_use_burst_mode": "Use burst mode in NNAPI",
    "nnapi_support_library_path": "NNAPI SL path",
    "use_hexagon": "Use Hexagon",
    "hexagon_lib_path": "Hexagon lib path",
    "hexagon_profiling": "Hexagon profiling",
    "use_coreml": "Use CoreML",
    "coreml_version": "CoreML version",
    "use_xnnpack": "Use xnnpack",
    "xnnpack_force_fp16": "xnnpack_force_fp16",
    **{flag.name: f"GPU option {flag.name}" for flag in OPTION_FLAGS},
}
"""TensorFlow Lite's labels of flags for printing values; litegpu's flags have similar labels."""


@dataclass(frozen=True)
class Applied:
    """A delegate with TensorFlow Lite's name.

    XNNPACK has no delegate object, because the runtime applies it last.
    """

    name: str
    delegate: Any = None
    trial_seconds: float = 0.0
    """Duration of the library's trial in another process, which is not creation time."""


def _of_library(name: str, loaded: foreign.Loaded) -> Applied:
    return Applied(name, loaded.delegate, loaded.trial_seconds)


@dataclass(frozen=True)
class Delegates:
    """The requested delegates that are available on this machine.

    `applied` is in the order of application. `builtin_kernels` means that the CPU runs without
    XNNPACK. `threads` is the number of CPU threads; None for the runtime's default.
    """

    applied: tuple[Applied, ...]
    threads: int | None
    builtin_kernels: bool

    @property
    def gpu(self) -> GpuDelegate | None:
        """The delegate of litegpu; None if not requested."""
        found = (each.delegate for each in self.applied)
        return next((each for each in found if isinstance(each, GpuDelegate)), None)

    @property
    def items(self) -> tuple[Any, ...]:
        """The delegate objects for the runtime's interpreter."""
        return tuple(each.delegate for each in self.applied if each.delegate is not None)

    def interpreter(self, model: bytes, allocate: bool = True, clustering: bool = True) -> Any:
        """Return an interpreter of `model` with all delegates; see `runtime.interpreter`."""
        return runtime.interpreter(
            *(model, self.items, self.threads, self.builtin_kernels, allocate),
            clustering=clustering,
        )

    def describe(self) -> str:
        """Return which processors run the model, such as `GPU, CPU (XNNPACK, threads: 4)`."""
        kernels = "built-in kernels" if self.builtin_kernels else "XNNPACK"
        threads = "the runtime's choice" if self.threads is None else self.threads
        names = [each.name for each in self.applied if each.delegate is not None]
        return ", ".join([*names, f"CPU ({kernels}, threads: {threads})"])


def make_delegates(args: argparse.Namespace, model: bytes | None = None) -> Delegates:
    """Create the delegates that the flags request, in the order of the flags.

    If a delegate is not available, the function prints a warning, and the CPU runs the nodes. If a
    flag specifies the GPU's API or device, an unusable GPU is an error.

    Args:
        args: the parsed REGISTRAR_FLAGS.
        model: the .tflite file for trials of other vendors' libraries, see `foreign.load`.

    Raises:
        OptionsError: a flag has an invalid value, or conflicts with another flag.
        UnsupportedDeviceError, MissingDependencyError: the GPU in the flags is not usable.
        DelegateLibraryError: the library of an external delegate cannot be used.
    """
    ask_for_gpu(args)
    _warn_of_unused(args)
    pairs: list[tuple[int, Applied]] = []
    for provider in PROVIDERS:
        if getattr(args, provider.flag) and (each := provider.make(args, model)):
            if not pairs:
                info(f"{each.name} delegate created.")
            if provider.flag == "use_gpu" and each.delegate is not None:
                info(_device_line(args, each.delegate))
            pairs.append((_position(args, provider.flag), each))
    return Delegates(
        applied=_in_order(pairs),
        threads=None if args.num_threads == -1 else max(args.num_threads, 1),
        builtin_kernels="use_xnnpack" in args.given and not args.use_xnnpack,
    )


def ask_for_gpu(args: argparse.Namespace) -> None:
    """Set `use_gpu` if flags set an option of the GPU delegate and request no other delegate.

    Raises:
        OptionsError: an option is set although the delegate is excluded, or is set twice.
    """
    for name, options in _SAME_AS.items():
        for option in options:
            if name in args.given and option in args.given:
                raise OptionsError(
                    f"--{name}={getattr(args, name)} and --{option}={getattr(args, option)} set "
                    "the same. Leave one of them out."
                )
    delegate = getattr(args, "delegate", None)
    refused = ""
    if "use_gpu" in args.given and not args.use_gpu:
        refused = "--use_gpu=false"
    elif delegate not in (None, "gpu"):
        refused = f"--delegate={delegate}"
    own = [flag.name for flag in OPTION_FLAGS if flag.name in args.given]
    if own and refused:
        raise OptionsError(
            f"--{own[0]}={getattr(args, own[0])} is an option of the GPU delegate, but {refused} "
            "excludes that. Leave one of them out."
        )
    chosen = any(getattr(args, provider.flag) for provider in PROVIDERS) or delegate
    if not own and not refused and not chosen:
        own = [name for name in args.given if name in _OF_GPU]
    if own and not args.use_gpu:
        args.use_gpu = True
        info(f"--{own[0]} requests the GPU delegate.")


def requested_backend(args: argparse.Namespace) -> str | None:
    """Return the GPU API in the flags; None for any API."""
    return args.backend or args.gpu_backend or None


def _device_line(args: argparse.Namespace, gpu: GpuDelegate) -> str:
    """Return a line about the delegate's device and precision, and the flags to change them."""
    chosen = {"precision", *_SAME_AS["gpu_precision_loss_allowed"], "gpu_precision_loss_allowed"}
    other = "" if chosen & {*args.given} else " (the default; --precision=fp16 stores half)"
    software = " (software)" if gpu.device.software else ""
    return f"GPU delegate: {gpu.device.title}{software}, {gpu.precision}{other}"


def _in_order(pairs: list[tuple[int, Applied]]) -> tuple[Applied, ...]:
    """Return the delegates in the order of their flags, with XNNPACK last."""
    wanted = [each for _, each in sorted(pairs, key=lambda pair: pair[0])]
    possible = sorted(wanted, key=lambda each: each.delegate is None)
    if possible != wanted:
        warn("The Python runtime applies XNNPACK automatically, after all other delegates.")
    return tuple(possible)


def parameter_lines(args: argparse.Namespace, verbose: bool = False) -> list[str]:
    """Return lines such as `Use gpu: [1]`, for each flag on the command line or for all flags."""
    return [
        f"{LOG_NAMES[flag.name]}: [{shown_value(getattr(args, flag.name))}]"
        for flag in REGISTRAR_FLAGS
        if flag.name in LOG_NAMES and (verbose or flag.name in args.given)
    ]


def _position(args: argparse.Namespace, flag: str) -> int:
    """Return the position of a flag on the command line; 0 if a tool has set the flag."""
    return args.given.index(flag) + 1 if flag in args.given else 0


def _warn_of_unused(args: argparse.Namespace) -> None:
    """Warn about flags without effect."""
    unknown = [f"--{name}={getattr(args, name)}" for name in args.given if name in _UNKNOWN_HERE]
    if unknown:
        warn(f"Unconsumed cmdline flags: {' '.join(unknown)}")
    for provider in PROVIDERS:
        if getattr(args, provider.flag):
            continue
        for flag in provider.flags:
            if flag.name in args.given and flag.name not in (provider.flag, *_UNKNOWN_HERE):
                warn(
                    f"`--{provider.flag}={provider.example}` must be set for the provided "
                    f"{LOG_NAMES[flag.name]} ({shown_value(getattr(args, flag.name))}) to be used."
                )
    half = bool(args.delegate_serialize_dir) != bool(args.delegate_serialize_token)
    if half and not config.cache_setting():
        warn(
            "Nothing is cached: --delegate_serialize_dir and --delegate_serialize_token must both "
            "be set."
        )


# Providers

_Make = Callable[[argparse.Namespace, bytes | None], Applied | None]


@dataclass(frozen=True)
class Provider:
    """A kind of delegate; `flag`, with a value such as `example`, requests the delegate."""

    flag: str
    example: str
    flags: tuple[Flag, ...]
    make: _Make


def _external(args: argparse.Namespace, model: bytes | None) -> Applied | None:
    options = foreign.parse_options("external_delegate_options", args.external_delegate_options)
    path = args.external_delegate_path
    requested = f"--external_delegate_path={path}"
    return _of_library("EXTERNAL", foreign.load(requested, path, options, model))


def _gpu(args: argparse.Namespace, _: bytes | None) -> Applied | None:
    try:
        return Applied("GPU", GpuDelegate(**_gpu_options(args), on_progress=start_bar()))
    except (UnsupportedDeviceError, MissingDependencyError) as error:
        if requested_backend(args) or args.device is not None:
            raise
        warn("GPU acceleration is unsupported on this platform.")
        warn(str(error))
        return None


def _gpu_options(args: argparse.Namespace) -> dict[str, Any]:
    least, given = args.min_nodes_per_partition, "min_nodes_per_partition" in args.given
    serialized = bool(args.delegate_serialize_dir and args.delegate_serialize_token)
    flags = ExperimentalFlags.ENABLE_QUANT if args.gpu_experimental_enable_quant else 0
    options: dict[str, Any] = {
        "experimental_flags": flags | (ExperimentalFlags.ENABLE_SERIALIZATION if serialized else 0),
        "max_delegated_partitions": args.max_delegated_partitions or None,
        "first_delegate_node_index": args.first_delegate_node_index,
        "last_delegate_node_index": args.last_delegate_node_index,
        "min_nodes_per_partition": least if given and least >= 0 else None,
        "backend": args.gpu_backend or None,
        "quantized": args.gpu_quantized or None,
        "quick_start": False,  # a measurement or an evaluation runs the same code throughout
    }
    if "gpu_unsafe_cache" in args.given:  # otherwise LITEGPU_CACHE_UNSAFE decides
        options["unsafe_cache"] = args.gpu_unsafe_cache
    if serialized or config.cache_setting():
        options["serialization_dir"] = args.delegate_serialize_dir or None
        options["model_token"] = args.delegate_serialize_token or None
    else:
        options["cache"] = False  # a cold start is measured, as with the original
    if args.gpu_inference_for_sustained_speed:
        options["inference_preference"] = InferencePreference.SUSTAINED_SPEED
    if args.gpu_precision_loss_allowed:
        options["inference_priority1"] = InferencePriority.MIN_LATENCY
        options["inference_priority2"] = InferencePriority.MIN_MEMORY_USAGE
        options["inference_priority3"] = InferencePriority.MAX_PRECISION
    return {**options, **given_options(args, OPTION_FLAGS)}


def changed_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the GPU delegate that flags set to other values than the default."""
    own = asdict(GpuDelegateOptions())
    measuring = {"cache", "quick_start"} - set(args.given)
    return {
        name: value
        for name, value in _gpu_options(args).items()
        if value != own[name] and name not in measuring
    }


def _xnnpack(args: argparse.Namespace, _: bytes | None) -> Applied | None:
    if args.xnnpack_force_fp16:
        warn("The Python runtime has no way to force XNNPACK to float16; it computes in float32.")
    return Applied("XNNPACK")


@dataclass(frozen=True)
class Elsewhere:
    """A delegate that Python runtimes do not include, provided by a library on some platforms."""

    name: str
    library: str
    platforms: tuple[str, ...]
    warning: str

    @property
    def flag(self) -> str:
        """The flag that requests the delegate."""
        return f"use_{self.name.lower()}"

    def make(self, args: argparse.Namespace, model: bytes | None) -> Applied | None:
        """Return the delegate, created with the flags, or None after TensorFlow Lite's warning."""
        where = f"{self.name.lower()}_lib_path"
        options = {
            each: shown_value(getattr(args, each))
            for each in args.given
            if each in FLAGS_OF[self.flag] and each not in (self.flag, where)
        }
        try:
            if platform() in self.platforms:
                path = os.path.join(getattr(args, where, ""), self.library)
                requested = f"--{self.flag}=true ({path})"
                return _of_library(self.name, foreign.load(requested, path, options, model))
        except DelegateLibraryError as error:
            warn(str(error))
        warn(self.warning)
        return None


def platform() -> str:
    """Return `sys.platform`, but `android` on Android, where older Python returns `linux`."""
    return "android" if hasattr(sys, "getandroidapilevel") else sys.platform


HEXAGON = Elsewhere(
    *("Hexagon", "libhexagon_delegate.so", ("android",)),
    "Could not create Hexagon delegate: platform may not support delegate or required libraries "
    "are missing",
)
COREML = Elsewhere(
    *("COREML", "libcoreml_delegate.dylib", ("darwin", "ios")),
    "CoreML acceleration is unsupported on this platform.",
)
NNAPI = Elsewhere(
    *("NNAPI", "libnnapi_delegate.so", ("android",)),
    "NNAPI acceleration is unsupported on this platform.",
)

PROVIDERS = (
    Provider("external_delegate_path", "FILE", EXTERNAL_FLAGS, _external),
    Provider("use_gpu", "true", GPU_FLAGS, _gpu),
    Provider(HEXAGON.flag, "true", HEXAGON_FLAGS, HEXAGON.make),
    Provider(COREML.flag, "true", COREML_FLAGS, COREML.make),
    Provider(NNAPI.flag, "true", NNAPI_FLAGS, NNAPI.make),
    Provider("use_xnnpack", "true", XNNPACK_FLAGS, _xnnpack),
)
"""All kinds of delegates, in the order of their creation."""

_OF_GPU = {
    *(flag.name for flag in (*DEFAULT_FLAGS, *GPU_FLAGS)),
} - {"num_threads", "use_gpu", *_UNKNOWN_HERE}
"""Flags that imply the GPU delegate if no flag requests a delegate."""
FLAGS_OF = {each.flag: tuple(flag.name for flag in each.flags) for each in PROVIDERS}
"""The names of each provider's flags, by the flag that requests the provider."""

REGISTRAR_FLAGS = (
    *DEFAULT_FLAGS,
    *OPTION_FLAGS,
    *(flag for each in PROVIDERS for flag in each.flags),
)
"""All delegate flags of TensorFlow Lite's tools, and the flags of litegpu's options."""
