"""Makes cffi parse the names of wgpu's C types once, not one by one.

wgpu-py names a C type in each `ffi.new` and `ffi.cast`. At the first use of a name, cffi parses it
together with all of the header's typedefs: 25 to 55 ms for each of some 40 names.
"""

from __future__ import annotations

from typing import Any

NAMES = (
    *("WGPUStringView *", "WGPUInstanceExtras *", "WGPUInstanceDescriptor *"),
    *("WGPUChainedStruct *", "WGPUChainedStruct * ", "WGPUAdapter[]", "WGPUAdapterInfo *"),
    *("WGPUNativeLimits *", "WGPULimits *", "char []", "char[]", "WGPUQueueDescriptor *"),
    *("WGPUDeviceExtras *", "WGPUDeviceLostCallbackInfo *", "WGPUUncapturedErrorCallbackInfo *"),
    *("WGPUFeatureName[]", "WGPUDeviceDescriptor *", "WGPURequestDeviceCallbackInfo *"),
    *("WGPUShaderSourceWGSL *", "WGPUShaderModuleDescriptor *", "WGPUBufferBindingLayout *"),
    *("WGPUBindGroupLayoutEntry *", "WGPUBindGroupLayoutEntry[]", "WGPUBindGroupLayout[]"),
    *("WGPUBindGroupLayoutDescriptor *", "WGPUPipelineLayoutDescriptor *", "WGPUComputeState *"),
    *("WGPUComputePipelineDescriptor *", "WGPUBufferDescriptor *", "uint8_t []", "uintptr_t"),
    *("uint8_t *", "WGPUBindGroupEntry *", "WGPUBindGroupEntry[]", "WGPUBindGroupDescriptor *"),
    *("WGPUBufferMapCallbackInfo *", "WGPUBufferMapCallback", "WGPUCommandBuffer *"),
    *("void(uint32_t)", "void(WGPULogLevel, WGPUStringView, void *)"),
    "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)",
    "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)",
    "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)",
)
"""The C type names that wgpu-py 0.32 and litegpu use until the first result of a model."""
_ARRAY, _FUNCTION = "[]", "void("


def parse_types(ffi: Any) -> None:
    """Have cffi parse all `NAMES` as members of one struct, and keep their types.

    With a version of cffi that keeps types elsewhere, or a header without one of the names, nothing
    changes: cffi parses each name when it is used.
    """
    known = getattr(ffi, "_parsed_types", None)
    if not isinstance(known, dict):
        return
    members = " ".join(f"{_member(name, number)};" for number, name in enumerate(NAMES))
    try:
        fields = ffi.typeof(f"struct {{ {members} }}").fields
    except Exception:  # cffi's and its parser's own, of versions of either
        return
    for name, (_, field) in zip(NAMES, fields, strict=True):
        parsed = field.type.item if name.endswith(_ARRAY) else field.type
        known.setdefault(name, (parsed, name.startswith(_FUNCTION)))


def _member(name: str, number: int) -> str:
    """Return the declaration of a struct's member that has the type or a pointer to it."""
    if name.startswith(_FUNCTION):
        return name.replace("(", f" (*t{number})(", 1)
    if name.endswith(_ARRAY):
        return f"{name.removesuffix(_ARRAY)} (*t{number})[]"
    return f"{name} t{number}"
