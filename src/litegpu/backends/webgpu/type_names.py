"""Makes cffi parse the names of wgpu's C types together, not one by one.

Each `ffi.new` and `ffi.cast` of wgpu-py names a C type. At the first use of a name, cffi parses the
name together with all typedefs of the header, which takes 25 to 55 ms. Until a model's first
result, wgpu-py and litegpu use about 40 names.
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
    """Make cffi parse all `NAMES` as members of one struct, and cache the types.

    The function does nothing if cffi stores types elsewhere, or if the header lacks one of the
    names. cffi then parses each name when it is used.
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
