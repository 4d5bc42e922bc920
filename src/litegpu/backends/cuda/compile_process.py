"""The program of a process that compiles with NVRTC, see cuda_processes.

It imports nothing of litegpu, and little of anything else, so that it is there soon. It
takes the library's path and version, and perhaps that others come first, then on stdin one
request after the other: the lengths of options and source, options with zeros between them,
source. What it gives on stdout is NVRTC's status, the length of a cubin and the cubin. It ends
with stdin, also within a compilation.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes as long as all others
import _thread
import ctypes
import os
import struct
import sys
from typing import Any, BinaryIO

REQUEST, REPLY = struct.Struct("<II"), struct.Struct("<iI")
ASIDE = "aside"
"""The argument of a process that leaves the cores to others."""
_NICENESS = 10
_CACHE_SINCE = (12, 9)
"""The first NVRTC that keeps what it compiled, for which it loads CUDA's driver: 300 milliseconds
of a process's first module on an H200's host, found there or not. litegpu keeps cubins itself.
"""
_FIRST = [b"--gpu-architecture=sm_80"]
"""Options of the first program, whose result is discarded."""


def compiled(nvrtc: Any, options: list[bytes], source: bytes) -> tuple[int, bytes]:
    """Return NVRTC's status and the cubin, an empty one after an error."""
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"litegpu.cu", 0, None, None)
    if status:
        return status, b""
    try:
        texts = (ctypes.c_char_p * len(options))(*options)
        status = nvrtc.nvrtcCompileProgram(program, len(options), texts)
        size = ctypes.c_size_t()
        status = status or nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        if status:
            return status, b""
        cubin = ctypes.create_string_buffer(size.value)
        status = nvrtc.nvrtcGetCUBIN(program, cubin)
        return status, b"" if status else cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def answer(nvrtc: Any, options: list[bytes], source: bytes, replies: BinaryIO) -> None:
    """Compile, and write the reply."""
    try:
        status, cubin = compiled(nvrtc, options, source)
        replies.write(REPLY.pack(status, len(cubin)) + cubin)
        replies.flush()
    except BaseException:
        os._exit(1)


def own_options(version: tuple[int, int]) -> list[bytes]:
    """Return the additional NVRTC options of a process."""
    return [b"--no-cache"] if version >= _CACHE_SINCE else []


def serve(nvrtc: Any, own: list[bytes], requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the pipe closes, with additional options of this process."""
    while len(header := requests.read(REQUEST.size)) == REQUEST.size:
        options_size, source_size = REQUEST.unpack(header)
        options, source = requests.read(options_size), requests.read(source_size)
        # In another thread, because this one detects the end of the parent while it waits.
        _thread.start_new_thread(answer, (nvrtc, options.split(b"\0") + own, source, replies))


def main(library: str, version: str, aside: str = "") -> None:
    """Serve with a library, unless its version is another one; perhaps `aside`."""
    # Ctrl-C is for the parent, which ends this process.
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    if aside and hasattr(os, "nice"):
        os.nice(_NICENESS)
    if hasattr(os, "add_dll_directory"):
        os.add_dll_directory(os.path.dirname(library))
    nvrtc = ctypes.CDLL(library)
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if f"{major.value}.{minor.value}" == version:
        own = own_options((major.value, minor.value))
        # NVRTC's one-time initialization is then done before the first request.
        compiled(nvrtc, _FIRST + own, b"")
        serve(nvrtc, own, sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
