"""Names that are reserved in WGSL, or used by its types and functions."""

from __future__ import annotations

_WORDS = """
    alias break case const const_assert continue continuing default diagnostic discard else enable
    false fn for if let loop override requires return struct switch true var while NULL Self
    abstract active alignas alignof as asm asm_fragment async attribute auto await become cast catch
    class co_await co_return co_yield coherent column_major common compile compile_fragment concept
    const_cast consteval constexpr constinit crate debugger decltype delete demote
    demote_to_helper do dynamic_cast enum explicit export extends extern external fallthrough filter
    final finally friend from fxgroup get goto groupshared highp impl implements import inline
    instanceof interface layout lowp macro macro_rules match mediump meta mod module move mut
    mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent
    noperspective null nullptr of operator package packoffset partial pass patch pixelfragment
    precise precision premerge priv protected pub public readonly ref regardless register
    reinterpret_cast require resource restrict self set shared sizeof smooth snorm static
    static_assert static_cast std subroutine super target template this thread_local throw trait try
    type typedef typeid typename typeof union unless unorm unsafe unsized use using varying virtual
    volatile wgsl where with writeonly yield
    bool f16 f32 i32 u32 array atomic bitcast ptr vec2 vec3 vec4 mat2x2 sampler texture
    abs acos all any arrayLength asin atan ceil clamp cos cosh cross degrees determinant distance
    dot dot4I8Packed exp exp2 extractBits firstLeadingBit floor fma fract frexp insertBits
    inverseSqrt ldexp length log log2 max min mix modf normalize pack2x16float pow quantizeToF16
    radians reflect round saturate select sign sin sinh smoothstep sqrt step tan tanh transpose
    trunc unpack2x16float workgroupBarrier main runtime_bits
"""
_RESERVED = frozenset(_WORDS.split())


def renamed(name: str) -> str:
    """Return a name, modified if it is reserved."""
    return f"{name}_" if name in _RESERVED or name.startswith("__") else name
