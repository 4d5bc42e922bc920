"""CUDA C++ for NVRTC, without any headers: PTX instructions convert halves."""

from __future__ import annotations

import math

from litegpu.codegen.cuda_integers import INTEGERS
from litegpu.codegen.dialect import SHARED_SIZES, Argument, Dialect, KernelText
from litegpu.codegen.sources import included

GRID_LIMITS = (65535, 2**31 - 1, 65535)
"""Maximum number of blocks of a launch on each axis (x, y, z), in all versions of CUDA."""
# Rows have the largest counts and are on the template's y axis, which is mapped to the grid's x.
_GRID = {"X": "((int)blockIdx.y)", "Y": "((int)blockIdx.x)", "Z": "((int)blockIdx.z)"}
_GRID_WORDS = "".join(f"#define GROUP_{axis} {index}\n" for axis, index in _GRID.items())

_PRELUDE = _GRID_WORDS + included(
    "cuda/include/words.cuh",
    "cuda/include/matrix.cuh",
    "cuda/include/warp_group.cuh",
    "cuda/include/float4.cuh",
    "cuda/include/range.cuh",
)


class CUDADialect(Dialect):
    """Translates kernels to CUDA C++ for NVRTC."""

    name = "cuda"
    prelude = _PRELUDE
    integers = INTEGERS

    def kernel(self, text: KernelText) -> str:
        """Return the entry point as a CUDA kernel."""
        given = text.attributes
        x, y, z = text.local_size
        arguments = "".join(f"{_declare(argument)}, " for argument in text.arguments)
        # CUDA templates begin by themselves, after loading what never changes.
        begin = "" if "BEGIN_KERNEL" in text.body else "    BEGIN_KERNEL();\n"
        # Blocks of a cluster are adjacent on the template's x axis.
        cluster = f"__cluster_dims__(1, {given.cluster_size}, 1) " if given.cluster_size > 1 else ""
        limit = f", {given.min_blocks}" if given.min_blocks else ""
        written = (
            f'extern "C" __global__ void {cluster}__launch_bounds__({x * y * z}{limit})\n'
            f"{text.name}({arguments}{_AHEAD}) {{\n    READ_AHEAD();\n"
            f"{_leave(text)}{_declare_shared(text)}{begin}"
            f"{text.body}}}\n"
        )
        return written if given.folded is None else _folded(text, written)


_AHEAD = "const char *ahead, unsigned long long ahead_part"
"""Launch parameters: the constants of a later launch to prefetch, and the bytes per block."""


def _leave(text: KernelText) -> str:
    """Return the line by which surplus thread blocks of a folded grid return early."""
    grid = text.attributes.folded
    return f"    if (GROUP >= {math.prod(grid)}) return;\n" if grid else ""


def _folded(text: KernelText, written: str) -> str:
    """Return a kernel whose thread blocks are folded to two axes; other kernels may follow it."""
    indices = "".join(f"#define GROUP_{axis} {index}\n" for axis, index, _ in text.grid_indices())
    nothing = "".join(f"#undef GROUP_{axis}\n" for axis in _GRID)
    return f"{nothing}{indices}{written}{nothing}{_GRID_WORDS}"


STATIC_SHARED_BYTES = 48 << 10
"""Maximum shared memory in bytes without a request at launch."""


def dynamic_shared_bytes(text: KernelText) -> int:
    """Return the bytes of shared memory to request at launch; 0 for small arrays."""
    return text.shared_bytes if text.shared_bytes > STATIC_SHARED_BYTES else 0


def _declare_shared(text: KernelText) -> str:
    if not dynamic_shared_bytes(text):
        arrays = (
            f"    __shared__ __align__(1024) {kind} {name}[{n}];\n" for kind, name, n in text.shared
        )
        return "".join(arrays)
    lines = ["    extern __shared__ __align__(1024) uint4 dynamic_shared[];\n"]
    start = 0
    for kind, name, length in text.shared:
        lines.append(f"    {kind} *const {name} = ({kind} *)(dynamic_shared + {start});\n")
        start += -(-SHARED_SIZES[kind] * length // 16)
    return "".join(lines)


_ELEMENTS = {
    ("F32", False): "float",
    ("F32", True): "float4",
    ("F16", False): "unsigned short",
    ("F16", True): "uint2",
    ("U32", False): "unsigned int",
    ("U32", True): "uint4",
    ("BOOL8", False): "unsigned char",
    ("BOOL8", True): "uchar4",
    ("S8", False): "signed char",
    ("S8", True): "char4",
    ("U8", False): "unsigned char",
    ("U8", True): "uchar4",
    ("S16", False): "short",
    ("S16", True): "short4",
    ("U16", False): "unsigned short",
    ("U16", True): "ushort4",
    ("I32", False): "int",
    ("I32", True): "int4",
    ("I64", False): "long long",
    ("I64", True): "longlong2",
}


def _declare(argument: Argument) -> str:
    element = _ELEMENTS[argument.kind, argument.vector]
    if argument.written:
        return f"{element} *{argument.name}"
    # Only constants may be read through the non-coherent cache: kernels overlap.
    restrict = "__restrict__ " if argument.constant else ""
    return f"const {element} *{restrict}{argument.name}"
