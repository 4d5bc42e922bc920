"""Compiler processes for CUDA kernels; their failures affect nothing else."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from litegpu import CompilationError
from litegpu.backends.cuda import compile_process as cuda_compile_process
from litegpu.backends.cuda import compile_processes as cuda_processes
from litegpu.backends.cuda import compiler as cuda_compiler
from litegpu.backends.cuda import driver as cuda_driver
from litegpu.backends.cuda.compile_process import ASIDE, REQUEST, own_options
from litegpu.backends.cuda.compile_processes import CompilerProcesses, command
from litegpu.backends.cuda.compiler import KernelCompiler, compile_source, options_for
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import CUDADialect
from litegpu.host.private_files import Folder

CAPABILITY = (8, 0)
OPTIONS = options_for(CAPABILITY)
SOURCE = 'extern "C" __global__ void f(float *a) { a[threadIdx.x] *= 3.0f; }'
SILENT = (sys.executable, "-c", "import sys; sys.stdin.read()")
Group = Callable[..., CompilerProcesses]


@pytest.fixture
def group() -> Iterator[Group]:
    """Return a function that starts processes; the fixture ends all of them."""
    created: list[CompilerProcesses] = []

    def make(*started_with: str, most: int = 1) -> CompilerProcesses:
        created.append(CompilerProcesses(lambda: started_with or real_command(), most))
        return created[-1]

    yield make
    for each in created:
        each.close()


def real_command() -> tuple[str, ...]:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    pytest.importorskip("cuda.pathfinder", reason="nothing tells where NVRTC is")
    return command(cuda_driver.call(cuda_compiler._nvrtc().nvrtcVersion))


def kernel(name: str, body: str = "") -> KernelText:
    """Return a kernel that is large enough for a separate module."""
    return KernelText(name, (), (1, 1, 1), (), body + "// nothing\n" * 3000)


def use(monkeypatch: pytest.MonkeyPatch, processes: CompilerProcesses) -> None:
    monkeypatch.setattr(cuda_processes, "processes", lambda *_: processes)


def compiled(*kernels: KernelText) -> list[bytes]:
    with KernelCompiler(CUDADialect(), CAPABILITY, None) as compiler:
        return compiler.cubins(kernels)


def test_a_process_gives_what_this_one_gives(group: Group) -> None:
    processes = group()
    here = [compile_source(each, OPTIONS) for each in (SOURCE, CUDADialect().source([]))]
    there = [processes.compile(each, OPTIONS) for each in (SOURCE, CUDADialect().source([]))]
    assert there == here


def test_modules_are_compiled_in_parallel(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    real_command()
    kernels = [kernel(f"f{number}", f"int x = {number};\n") for number in range(3)]
    alone = compiled(*kernels)
    processes, requested = group(), threading.Event()
    compile_there = processes.compile

    def there(source: str, options: Sequence[str]) -> bytes | None:
        requested.set()
        return compile_there(source, options)

    def here(source: str, options: Sequence[str]) -> bytes:
        assert requested.wait(30)
        return compile_source(source, options)

    use(monkeypatch, processes)
    monkeypatch.setattr(processes, "compile", there)
    monkeypatch.setattr(cuda_processes, "cores", lambda: 2)
    monkeypatch.setattr(cuda_compiler, "compile_source", here)
    assert compiled(*kernels) == alone


def test_errors_are_told_by_this_process(group: Group) -> None:
    processes = group()
    assert processes.compile("nonsense", OPTIONS) is None
    assert processes.compile(SOURCE, OPTIONS) is None, "nobody tries again"


@pytest.mark.parametrize(
    "started_with",
    [
        ("/nowhere/python",),
        (sys.executable, "-c", "raise SystemExit(3)"),
        (sys.executable, "-c", "import os; os.write(1, b'short')"),
        (sys.executable, "-c", "import os; os.write(1, bytes(4) + b'~~~~too short')"),
    ],
)
def test_without_processes_this_one_compiles(
    group: Group, monkeypatch: pytest.MonkeyPatch, started_with: tuple[str, ...]
) -> None:
    processes = group(*started_with, most=5)
    assert processes.compile(SOURCE, OPTIONS) is None
    assert processes.compile(SOURCE, OPTIONS) is None

    requested = threading.Event()

    def here(source: str, _options: Sequence[str]) -> bytes:
        if threading.current_thread().name.endswith("_0"):
            assert requested.wait(30)
        requested.set()
        return source.encode()

    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    use(monkeypatch, processes)
    monkeypatch.setattr(cuda_processes, "cores", lambda: 2)
    monkeypatch.setattr(cuda_compiler, "compile_source", here)
    assert len(compiled(kernel("f"), kernel("g"))) == 2


def test_a_process_that_hangs_is_ended(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_processes, "_PATIENCE_S", 0.1)
    processes = group(sys.executable, "-c", "import time; time.sleep(600)")
    assert processes.compile(SOURCE, OPTIONS) is None


def test_a_killed_process_is_not_missed(group: Group) -> None:
    processes = group()
    assert processes.compile(SOURCE, OPTIONS)
    (process,) = processes._idle
    process.kill()
    process.wait(30)
    assert processes.compile(SOURCE, OPTIONS) is None
    assert process.stdin
    assert process.stdin.closed


def test_the_end_of_a_start_waits_for_no_process(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, errors = group(*SILENT), list[str]()

    def wait_for_cubin() -> None:
        monkeypatch.setattr(cuda_compiler, "compile_source", lambda *_: b"")
        with KernelCompiler(CUDADialect(), CAPABILITY, None) as compiler:
            compiler._here.acquire()
            waiting = threading.Thread(target=refused, args=(compiler,))
            waiting.start()
            while not processes._busy:
                time.sleep(0.01)
        waiting.join(30)

    def refused(compiler: KernelCompiler) -> None:
        with pytest.raises(CompilationError, match="was cancelled") as raised:
            compiler._compile(SOURCE, OPTIONS)
        errors.append(str(raised.value))

    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    use(monkeypatch, processes)
    wait_for_cubin()
    assert errors == ["The compilation was cancelled."]
    assert not processes._busy


def test_what_is_started_after_the_end_is_ended(group: Group) -> None:
    processes = group(*SILENT)
    processes.close()
    assert processes.compile(SOURCE, OPTIONS) is None
    assert not processes._busy


def test_processes_end_with_whom_they_compile_for() -> None:
    long = SOURCE.replace("*=", "+=" + "sinf(a[1]) +" * 20_000)
    request = REQUEST.pack(len(OPTIONS[0]), len(long))
    with subprocess.Popen(real_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(request + OPTIONS[0].encode() + long.encode())
        process.stdin.close()
        began = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 10


def test_processes_start_before_their_kernels_are_written(
    group: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    for name, left in (("empty", 2), ("full", 5)):
        processes, folder = group(*SILENT, most=5), tmp_path / name
        use(monkeypatch, processes)
        folder.mkdir()
        if name == "full":
            (folder / "another.cubin").touch()
        with KernelCompiler(CUDADialect(), CAPABILITY, Folder(str(folder), False)) as compiler:
            compiler.expect(4)
            compiler._pool.shutdown()
            assert (processes._left, len(processes._idle)) == (left, 5 - left)


def test_modules_are_smaller_where_others_compile_too(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    monkeypatch.setattr(cuda_compiler, "compile_source", lambda source, _: source.encode())
    kernels = [KernelText(f"f{n}", (), (1, 1, 1), (), "// nothing\n" * 1000) for n in range(6)]
    for processes, modules in ((group(*SILENT, most=0), 2), (group("/nowhere"), 3)):
        use(monkeypatch, processes)
        assert len(compiled(*kernels)) == modules


def test_aside_this_process_compiles_nothing(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "compile_source", lambda *_: pytest.fail("here"))
    here = compile_source(CUDADialect().source([kernel("f")]), OPTIONS)
    use(monkeypatch, group(*real_command(), ASIDE, most=2))
    with KernelCompiler(CUDADialect(), CAPABILITY, None, aside=True) as compiler:
        threads = [each for each in threading.enumerate() if "nvrtc-aside" in each.name]
        assert len(threads) == 2
        assert all(each.daemon for each in threads)
        assert compiler.cubins([kernel("f")]) == [here]
    for processes in (group(*SILENT, most=0), group("/nowhere", most=1)):
        use(monkeypatch, processes)
        with (
            KernelCompiler(CUDADialect(), CAPABILITY, None, aside=True) as compiler,
            pytest.raises(CompilationError, match="no compiler process could be started"),
        ):
            compiler.cubins([kernel("f")])
    for each in threads:
        each.join(30)
        assert not each.is_alive()


@pytest.mark.skipif(not hasattr(os, "nice"), reason="Windows has classes of priority")
def test_processes_aside_leave_the_cores_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    nice: list[int] = []
    ignored: list[tuple[object, ...]] = []
    signals = vars(cuda_compile_process)["_signal"]
    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(signals, "signal", lambda *of: ignored.append(of))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("no library"))
    for aside in ([], [ASIDE]):
        with pytest.raises(pytest.fail.Exception, match="no library"):
            cuda_compile_process.main("libnvrtc.so", "13.0", *aside)
    assert nice == [10]
    assert ignored == [(signal.SIGINT, signal.SIG_IGN)] * 2


def test_processes_do_without_the_cache_of_nvrtc() -> None:
    assert [own_options(version) for version in ((12, 8), (12, 9), (13, 0))] == [
        [],
        [b"--no-cache"],
        [b"--no-cache"],
    ]


def test_processes_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "7")
    program = (
        "import os; print(os.environ['MALLOC_TOP_PAD_'], os.environ['MALLOC_TRIM_THRESHOLD_'])"
    )
    process = cuda_processes._started((sys.executable, "-c", program))
    assert process
    assert process.communicate(timeout=30)[0].split() == [b"7", b"1073741824"]


def test_another_version_does_not_compile() -> None:
    *start, _ = real_command()
    done = subprocess.run((*start, "1.2"), input=b"", capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("executable", ["", "/usr/bin/blender", "python-config", None])
def test_only_python_is_started(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    monkeypatch.setattr(cuda_processes, "_library", lambda: "libnvrtc.so")
    for name in ("python", "python3.13t", "PYTHON.EXE", "pypy3"):
        monkeypatch.setattr(sys, "executable", f"/usr/bin/{name}")
        assert command((13, 0))[-2:] == ("libnvrtc.so", "13.0")
    monkeypatch.setattr(sys, "executable", executable)
    assert command((13, 0)) == ()


def test_where_no_program_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_processes, "_library", lambda: "libnvrtc.so")
    assert command((13, 0))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        assert command((13, 0)) == ()
    with monkeypatch.context() as patch:
        patch.setattr(cuda_processes, "_PROGRAM", tmp_path / "within.zip" / "program.py")
        assert command((13, 0)) == ()
    monkeypatch.setattr(cuda_processes, "_library", lambda: None)
    assert command((13, 0)) == ()


def test_older_bindings_do_not_tell_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    assert cuda_processes._library.__wrapped__() is None


@pytest.mark.parametrize(
    ("cores", "wanted", "most", "aside"),
    [(3, "", 0, 0), (4, "", 3, 2), (64, "1", 15, 8), (64, "0", 0, 0)],
)
def test_how_many_processes(
    monkeypatch: pytest.MonkeyPatch, cores: int, wanted: str, most: int, aside: int
) -> None:
    monkeypatch.setenv("LITEGPU_COMPILE_PROCESSES", wanted)
    monkeypatch.setattr(cuda_processes, "cores", lambda: cores)
    monkeypatch.setattr(cuda_processes, "_library", lambda: "libnvrtc.so")
    for beside, number in ((False, most), (True, aside)):
        found = cuda_processes.processes(lambda: (13, 0), beside)
        assert found._left == number
        assert (found._command()[-1] == ASIDE) == beside
    assert cuda_processes.are_possible() == bool(most)
    monkeypatch.setattr(sys, "executable", "/usr/bin/blender")
    assert not cuda_processes.are_possible() and found._command() == ()


@pytest.mark.parametrize(
    ("reported", "cores"),
    [("max 100000", 8), ("250000 100000", 2), ("5000 100000", 1), ("9900000 100000", 8), ("?", 8)],
)
def test_cores_that_a_container_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reported: str, cores: int
) -> None:
    path = tmp_path / "cpu.max"
    monkeypatch.setattr(cuda_processes, "_CPU_TIME", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert cuda_processes.cores() == 8, "no file"
    path.write_text(f"{reported}\n")
    assert cuda_processes.cores() == cores
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cuda_processes.cores() == 1
