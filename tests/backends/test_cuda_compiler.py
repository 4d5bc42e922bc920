"""CUDA kernels are compiled in parallel while further kernels are rendered."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from litegpu import CompilationError
from litegpu.backends.base import Compilation
from litegpu.backends.cuda import compile_processes as cuda_processes
from litegpu.backends.cuda import compiler as cuda_compiler
from litegpu.backends.cuda.compiler import KernelCompiler, compile_kernels
from litegpu.backends.execution import Executable
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import CUDADialect
from litegpu.engine.layout import assign
from litegpu.engine.lowering import Constants
from litegpu.engine.partition import compile_partition
from litegpu.engine.program import build_program
from litegpu.errors import KernelError
from litegpu.host.private_files import Folder
from litegpu.numeric_policy import FP32
from paper_device import DEVICE, PaperDevice
from passes.graphs import RELU, GraphBuilder


def kernel(name: str, body: str = "") -> KernelText:
    return KernelText(name, (), (1, 1, 1), (), body)


def long(name: str) -> KernelText:
    """Return a kernel that is large enough for a separate module."""
    return kernel(name, "// nothing\n" * 3000)


class Compilers:
    """A replacement for NVRTC that records compilations, and can block them."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.options: list[Sequence[str]] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, source: str, options: Sequence[str]) -> bytes:
        self.sources.append(source)
        self.options.append(options)
        self.begun.release()
        assert self.may_end.wait(30)
        if "refused" in source:
            raise CompilationError("NVRTC rejects a kernel")
        return source.encode()


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> Compilers:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    found = Compilers()
    monkeypatch.setattr(cuda_compiler, "compile_source", found)
    return found


def test_a_long_kernel_begins_before_the_next_one_is_there(compilers: Compilers) -> None:
    compilers.may_end.clear()
    with KernelCompiler(CUDADialect(), (8, 0), None) as compiler:
        compiler.add(long("first"))
        assert compilers.begun.acquire(timeout=30)
        compiler.add(long("second"))
        compilers.may_end.set()
        cubins = compiler.cubins([long("first"), long("second"), kernel("third")])
    assert [text.count(b"// nothing") for text in cubins] == [3000, 3000, 0]
    assert len(compilers.sources) == 3, "each kernel once"


def test_what_takes_longest_begins_first(
    compilers: Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_processes, "cores", lambda: 1)
    compilers.may_end.clear()
    unrolled = kernel("unrolled", "#pragma unroll\n" * 150)
    with KernelCompiler(CUDADialect(), (8, 0), None) as compiler:
        compiler.add(kernel("short"))
        compiler.add(long("first"))
        assert compilers.begun.acquire(timeout=30)
        compiler.add(long("second"))
        compiler.add(unrolled)
        compilers.may_end.set()
        cubins = compiler.cubins([kernel("short"), unrolled, long("first"), long("second")])
    names = ("first", "unrolled", "second", "short")
    for name, source in zip(names, compilers.sources, strict=True):
        assert f"\n{name}(" in source
    order = ("first", "second", "unrolled", "short")
    for name, cubin in zip(order, cubins, strict=True):
        assert f"\n{name}(".encode() in cubin, "in the order in which they were added"


def test_a_kernel_that_is_refused_costs_its_module_only(compilers: Compilers) -> None:
    kernels = [kernel(name) for name in ("one", "refused_one", "other", "refused_two")]
    with KernelCompiler(CUDADialect(), (8, 0), None) as compiler:
        compiler.add(long("first"))
        with pytest.raises(
            KernelError, match="NVRTC rejects kernels: refused_one: NVRTC"
        ) as caught:
            compiler.cubins(kernels)
        assert list(caught.value.reasons) == ["refused_one", "refused_two"]
        assert len(compilers.sources) == 6, "each kernel of the shared module by itself"
        cubins = compiler.cubins([kernels[0], kernels[2], kernel("instead")])
        assert len(compilers.sources) == 7
    assert len(cubins) == 3, "the program that takes its place has no use for the first"
    for cubin, name in zip(cubins, (b"one", b"other", b"instead"), strict=True):
        assert b"\n" + name + b"(" in cubin and b"refused" not in cubin


def test_short_kernels_share_a_module(compilers: Compilers) -> None:
    kernels = [kernel(f"short_{number}") for number in range(7)]
    (cubin,) = compile_kernels(CUDADialect(), kernels, (8, 0), None)
    assert all(each.name.encode() in cubin for each in kernels)
    assert compile_kernels(CUDADialect(), [], (8, 0), None) == []
    longer = [kernel(f"short_{number}", "// nothing\n" * 1800) for number in range(5)]
    assert len(compile_kernels(CUDADialect(), longer, (8, 0), None)) == 3, "two are enough"


def test_short_kernels_do_not_wait_for_weights_to_be_packed(compilers: Compilers) -> None:
    begun: list[bool] = []
    pack = Constants.pack

    def noted(self: Constants, alignment: int) -> Any:
        begun.append(compilers.begun.acquire(timeout=30))
        return pack(self, alignment)

    builder = GraphBuilder()
    graph = builder.graph(builder.elementwise(builder.input(1, 5, 5, 4), RELU))
    with (
        mock.patch.object(Constants, "pack", noted),
        KernelCompiler(CUDADialect(), (8, 0), None) as compiler,
    ):
        ends = graph.inputs, graph.outputs
        layout = assign(graph, FP32)
        build_program(layout, DEVICE, *ends, compilation=cast(Compilation, compiler))
    assert begun == [True]


def test_what_was_begun_ends_with_the_block(compilers: Compilers) -> None:
    with (
        pytest.raises(CompilationError, match="NVRTC rejects a kernel"),
        KernelCompiler(CUDADialect(), (8, 0), None) as compiler,
    ):
        for number in range(3):
            compiler.add(long(f"refused_{number}"))
        compiler.cubins([])
    threads = [each.name for each in threading.enumerate()]
    assert not [name for name in threads if name.startswith("litegpu-nvrtc")]


def test_what_is_compiled_in_a_hurry_is_kept_by_nobody(
    compilers: Compilers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda_compiler, "can_compile_fast", lambda: True)
    made_by = (CUDADialect(), (8, 0), Folder(str(tmp_path), False))

    def hurried(quick: bool) -> tuple[bool, bool]:
        """Return whether any kernel was compiled quickly, and whether the last one was."""
        with KernelCompiler(*made_by, fast_compile=quick) as compiler:
            compiler.cubins([long("first")])
            return compiler.fast_compiled, "--Ofast-compile=mid" in compilers.options[-1]

    assert [hurried(quick) for quick in (True, True, False)] == [
        (True, True),
        (True, True),
        (False, False),
    ]
    assert (hurried(True), len(compilers.sources)) == ((False, False), 3), "the better one is there"


def test_what_only_the_fast_compiler_rejects_is_optimized_at_once(
    compilers: Compilers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compile_source = cuda_compiler.compile_source

    def without_fast(source: str, options: Sequence[str]) -> bytes:
        if "--Ofast-compile=mid" in options:
            raise CompilationError("NVRTC rejects a kernel: unsupported operation")
        return compile_source(source, options)

    monkeypatch.setattr(cuda_compiler, "can_compile_fast", lambda: True)
    monkeypatch.setattr(cuda_compiler, "compile_source", without_fast)
    folder = Folder(str(tmp_path), False)
    with KernelCompiler(CUDADialect(), (8, 0), folder, fast_compile=True) as compiler:
        assert len(compiler.cubins([long("first")])) == 1
        assert not compiler.fast_compiled
        with pytest.raises(CompilationError, match="NVRTC rejects a kernel"):
            compiler.cubins([long("refused")])
    assert len([*tmp_path.iterdir()]) == 1, "it is cached"


@pytest.mark.parametrize(
    ("version", "possible", "quick"),
    [((12, 8), True, False), ((12, 9), True, True), ((13, 0), True, True), ((13, 0), False, False)],
)
def test_where_there_is_a_quick_compiler(
    version: tuple[int, int],
    possible: bool,
    quick: bool,
    compilers: Compilers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_compiler, "_nvrtc_version", lambda: version)
    monkeypatch.setattr(cuda_processes, "are_possible", lambda: possible)
    with KernelCompiler(CUDADialect(), (8, 0), None, fast_compile=True) as compiler:
        compiler.cubins([long("first")])
    assert compiler.fast_compiled == quick == cuda_compiler.can_compile_fast()


def test_engines_tell_kernels_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[list[str]] = []
    add, finish = Compilation.add, Compilation.finish

    def noted(self: Compilation, text: KernelText) -> None:
        added[-1].append(text.name)
        add(self, text)

    def ended(self: Compilation, program: Program) -> Executable:
        assert {each.name for each in program.kernels} == set(added[-1])
        added.append([])
        return finish(self, program)

    monkeypatch.setattr(Compilation, "add", noted)
    monkeypatch.setattr(Compilation, "finish", ended)
    added.append([])
    builder = GraphBuilder()
    x = builder.input(1, 5, 5, 4)
    graph = builder.graph(builder.elementwise(x, RELU), builder.elementwise(x, RELU, RELU))
    compile_partition(graph, PaperDevice(), FP32).close()
    ((*names,), after) = added
    assert names
    assert not after
