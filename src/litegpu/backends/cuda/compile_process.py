"""The program of a process that compiles with NVRTC; see `compile_processes.py`.

To start fast, the program imports no module of litegpu, and few other modules. Its arguments are
the path and version of NVRTC's library, and an optional flag for low priority. The program reads
requests from stdin: the lengths of options and source, the options separated by zero bytes, and the
source. For each request, the program writes NVRTC's status, the length of the cubin and the cubin
to stdout. The program exits when stdin closes, even during a compilation.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # importing `signal` takes as long as all others
import _thread
import ctypes
import os
import struct
import sys
from typing import Any, BinaryIO

REQUEST, REPLY = struct.Struct("<II"), struct.Struct("<iI")
ASIDE = "aside"
"""The argument of a process with low priority."""
_NICENESS = 10
_CACHE_SINCE = (12, 9)
"""The first NVRTC version with a compilation cache. Its cache loads CUDA's driver, which takes 300
ms for the first module of a process on an H200's host. litegpu caches cubins itself.
"""
_FIRST = [b"--gpu-architecture=sm_80"]
"""Options of the first program that a process compiles, whose result is discarded."""


def compiled(nvrtc: Any, options: list[bytes], source: bytes) -> tuple[int, bytes]:
    """Return NVRTC's status and the cubin, which is empty after an error."""
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
    """Compile a source, and write the reply."""
    try:
        status, cubin = compiled(nvrtc, options, source)
        replies.write(REPLY.pack(status, len(cubin)) + cubin)
        replies.flush()
    except BaseException:
        os._exit(1)


def own_options(version: tuple[int, int]) -> list[bytes]:
    """Return additional NVRTC options that each compilation of this process uses."""
    return [b"--no-cache"] if version >= _CACHE_SINCE else []


def serve(nvrtc: Any, own: list[bytes], requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the pipe closes, with the additional options `own`."""
    while len(header := requests.read(REQUEST.size)) == REQUEST.size:
        options_size, source_size = REQUEST.unpack(header)
        options, source = requests.read(options_size), requests.read(source_size)
        # Compile in another thread: this one reads, and so detects the end of the parent process.
        _thread.start_new_thread(answer, (nvrtc, options.split(b"\0") + own, source, replies))


def main(library: str, version: str, aside: str = "") -> None:
    """Serve requests with an NVRTC library of this version; `aside` lowers the priority."""
    # The parent handles Ctrl-C, and ends this process.
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
        # This does NVRTC's one-time initialization before the first request.
        compiled(nvrtc, _FIRST + own, b"")
        serve(nvrtc, own, sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
