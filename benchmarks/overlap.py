"""Measures how kernels follow each other on a GPU: what an edge between two costs, and networks.

    python benchmarks/overlap.py edges [--out FILE]
    python benchmarks/overlap.py networks zoo:resnet50 'zoo:mobilenet_v2_1.0_224?batch=64'

`edges` runs chains of 48 small kernels, each of which reads what others of the one before wrote,
adds numbers for `work` steps and stores, in blocks that hold `shared` bytes each:

- plain: each kernel begins when the one before has ended.
- waited, first: programmatic launches; the next kernel's blocks may begin once this one's have
  waited for the one before, or before that.
- counted, counted first: the same, but blocks wait for a counter to which those before have added.
- loop: one kernel that stays, whose blocks wait for each other by such a counter.

`networks` takes the chain of a model's kernels as the delegate launches it (even), and with no more
shared memory than kernels need (uneven): microseconds, medians.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import machine
from litegpu import GpuDelegate
from litegpu.backends.cuda.compiler import compile_source, options_for
from litegpu.backends.cuda.driver import Handles, call, driver
from litegpu.backends.cuda.profile import CUDAProfiler
from litegpu.codegen.cuda import dynamic_shared_bytes
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import print_table
from litegpu.zoo import resolve_model
from measuring import make_inputs

_KERNELS = 48
_RUNS, _REPEATS = 20, 6
_APART = 128
"""Bytes from one counter to the next: lines of the cache."""
_SOURCE = """
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#define NEXT asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
__device__ void work(const float *in, float *out, int steps) {
    const int items = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = __ldcg(in + (i * 33 + blockDim.x * 7) % items);
    for (int k = 0; k < steps; ++k) v = fmaf(v, 0.5f, 1.0f);
    __stcg(out + i, v);
}
__device__ unsigned count(unsigned *p) {
    unsigned v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ void arrive(unsigned *p) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(p) : "memory");
}
__device__ void counted(unsigned *before, unsigned blocks, unsigned *old) {
    if (threadIdx.x == 0) {
        if (blocks) while (count(before) < blocks); else WAIT;
        if (blockIdx.x == 0) *old = 0;
    }
    __syncthreads();
}
#define KERNEL(name) extern "C" __global__ void name(const float *in, float *out, int steps, \\
    unsigned *mine, unsigned *before, unsigned blocks, unsigned *old)
KERNEL(plain) { work(in, out, steps); }
KERNEL(waited) { WAIT; NEXT; work(in, out, steps); }
KERNEL(first) { NEXT; WAIT; work(in, out, steps); }
KERNEL(counted_waited) {
    counted(before, blocks, old); NEXT; work(in, out, steps);
    __syncthreads(); if (threadIdx.x == 0) arrive(mine);
}
KERNEL(counted_first) {
    NEXT; counted(before, blocks, old); work(in, out, steps);
    __syncthreads(); if (threadIdx.x == 0) arrive(mine);
}
KERNEL(loop) {  // `blocks` says how often
    const float *from = in; float *to = out;
    for (unsigned turn = 0; turn < blocks; ++turn) {
        work(from, to, steps);
        __syncthreads();
        if (threadIdx.x == 0) {
            arrive(mine);
            while (count(mine) < gridDim.x * (turn + 1));
        }
        __syncthreads();
        float *const other = to; to = (float *)from; from = other;
    }
}
"""
_WAYS = ("plain", "waited", "first", "counted_waited", "counted_first", "loop")


def edges() -> Iterable[dict[str, Any]]:
    """Yield microseconds of a kernel in each kind of chain."""
    cu, owned = driver(), Handles()
    call(cu.cuInit, 0)
    (device,) = call(cu.cuDeviceGet, 0)
    (context,) = call(cu.cuDevicePrimaryCtxRetain, device)
    call(cu.cuCtxSetCurrent, context)
    module = owned.make(
        cu.cuModuleLoadData, cu.cuModuleUnload, compile_source(_SOURCE, options_for((9, 0)))
    )
    functions = {way: call(cu.cuModuleGetFunction, module, way.encode())[0] for way in _WAYS}
    limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for function in functions.values():
        call(cu.cuFuncSetAttribute, function, limit, 200 << 10)
    stream = owned.make(cu.cuStreamCreate, cu.cuStreamDestroy, 1)
    first, second, counters = (
        int(owned.make(cu.cuMemAlloc, cu.cuMemFree, n)) for n in (1 << 22, 1 << 22, 1 << 16)
    )
    events = [owned.make(cu.cuEventCreate, cu.cuEventDestroy, 0) for _ in range(2)]

    def node(way: str, blocks: int, threads: int, shared: int, given: Sequence[int]) -> Any:
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.hStream, config.sharedMemBytes = stream, shared
        if way not in ("plain", "loop"):
            attribute = cu.CUlaunchAttribute()
            attribute.id = (
                cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        pointer, whole = ctypes.c_void_p, ctypes.c_int
        types = (pointer, pointer, whole, pointer, pointer, whole, pointer)
        return config, functions[way], (tuple(given), types)

    def nodes(way: str, blocks: int, threads: int, shared: int, steps: int) -> list[Any]:
        if way == "loop":
            given = (first, second, steps, counters, 0, _KERNELS, 0)
            return [node(way, blocks, threads, shared, given)]
        chain = []
        for number in range(_KERNELS):
            ends = (first, second) if number % 2 == 0 else (second, first)
            places = [
                counters + _APART * (each % _KERNELS) for each in (number, number - 1, number - 2)
            ]
            given = (*ends, steps, places[0], places[1], blocks if number else 0, places[2])
            chain.append(node(way, blocks, threads, shared, given))
        return chain

    def microseconds(graph: int) -> float:
        times = []
        for _ in range(_REPEATS):
            call(cu.cuEventRecord, events[0], stream)
            for _ in range(_RUNS):
                call(cu.cuMemsetD8Async, counters, 0, _APART, stream)
                call(cu.cuGraphLaunch, graph, stream)
            call(cu.cuEventRecord, events[1], stream)
            call(cu.cuStreamSynchronize, stream)
            (milliseconds,) = call(cu.cuEventElapsedTime, *events)
            times.append(float(milliseconds) * 1e3 / _RUNS / _KERNELS)
        return min(times)

    for blocks, threads in ((132, 256), (100, 256), (264, 256), (132, 128), (32, 256)):
        for shared, steps in itertools.product((0, 120 << 10, 200 << 10), (0, 250, 1000)):
            if blocks > 132 and shared:
                continue  # not all are there at a time: counters would wait for ever
            row: dict[str, Any] = dict(blocks=blocks, threads=threads, shared=shared, work=steps)
            for way in _WAYS:
                call(cu.cuMemsetD8, counters, 0, 1 << 16)
                graph = owned.capture(stream, nodes(way, blocks, threads, shared, steps))
                row[way] = round(microseconds(int(graph)), 3)
            yield row
    owned.release()


def networks(models: Sequence[str], precision: Literal["fp16", "fp32"]) -> Iterable[dict[str, Any]]:
    """Yield the microseconds of each model's chain, blocks spread evenly and not."""
    for name in models:
        row: dict[str, Any] = {"model": name, "precision": precision}

        def chain(self: CUDAProfiler, row: dict[str, Any] = row) -> float:
            context = self._context
            code = context._code
            texts = {kernel.name: kernel for kernel in context.program.kernels}
            needed = tuple(dynamic_shared_bytes(texts[x.kernel]) for x in context.program.launches)
            row["launches"] = len(needed)
            row["asking"] = sum(a != b for a, b in zip(code.shared, needed, strict=True))
            for way, shared in (("uneven", needed), ("even", code.shared)) * 2:
                with patch.object(context, "_code", dataclasses.replace(code, shared=shared)):
                    nodes = list(context.kernel_nodes({}, overlap=True))
                graph = context.device.within(partial(self._captured, nodes))
                of_graph = partial(self._of_graph, graph)
                times = [context.synchronized(of_graph) * 1e6 for _ in range(40)]
                row.setdefault(way, []).append(round(statistics.median(times), 1))
            return float(row["even"][0]) * 1e-6

        content = resolve_model(name)
        delegate = GpuDelegate(backend="cuda", precision=precision, cache=False)
        target = runtime.interpreter(content, delegate)
        for detail, value in zip(
            target.get_input_details(), make_inputs(target, None), strict=True
        ):
            target.set_tensor(detail["index"], value)
        target.invoke()
        with patch.object(CUDAProfiler, "chain_seconds", chain):
            delegate.profile(repeats=1, peaks=False)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["edges", "networks"])
    parser.add_argument("models", nargs="*", help="paths or zoo names")
    parser.add_argument("--precision", choices=["fp16", "fp32"], default="fp16")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    if options.what == "networks" and not options.models:
        parser.error("name the models")
    found = edges() if options.what == "edges" else networks(options.models, options.precision)
    rows = []
    for row in found:
        rows.append(row)
        print(row, flush=True)
        if options.out:
            about = {"date": datetime.date.today().isoformat(), "machine": machine.facts()}
            options.out.write_text(json.dumps(about | {options.what: rows}, indent=1) + "\n")
    print_table(list(rows[0]), [[str(each) for each in row.values()] for row in rows])


if __name__ == "__main__":
    main()
