"""Ten thousand requests of 32 threads: correct results, and constant memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from places import python_path

PROGRAM = """
import sys, threading
from pathlib import Path
import numpy as np
from litegpu import Batcher, CompiledModel, CompiledModelError
from small_models import chain

THREADS, REQUESTS = 32, 10_000
model = CompiledModel.from_buffer(chain(["ABS", "NEG"]), contexts=4)
batcher = Batcher(model, max_batch=16, max_delay_ms=1)
ways = (model, batcher, lambda x: model.submit(x).result(), lambda x: batcher.submit(x).result())
faults, refused = [], []

def work(seed, count):
    for number in range(count):
        x = np.full((1, 4, 4, 4), seed + number / 1000, np.float32)
        way = ways[number % len(ways)]
        try:
            if number % 50 == 7:
                way(x[0])
            elif not (way(x) == -x).all():
                faults.append(number)
        except CompiledModelError as error:
            refused.append(str(error))
        except BaseException as error:
            faults.append(repr(error))

def resident():
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * 4096 if pages.exists() else 0

def requests(count):
    threads = [threading.Thread(target=work, args=(n, count // THREADS)) for n in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

requests(REQUESTS // 4)
before = resident()
requests(REQUESTS * 3 // 4)
grown = resident() - before
batcher.close()
model.close()
assert not faults, faults[:3]
assert all("shape [" in text for text in refused), refused[0]
assert len(refused) == 32 * (2 + 5), len(refused)
print("flat" if grown < 16 << 20 else f"grown by {grown} bytes")
"""


@pytest.mark.parametrize("backend", ["", "opengl"])
def test_ten_thousand_requests(backend: str, tmp_path: Path) -> None:
    if backend:
        pytest.importorskip("glcontext")
    program = PROGRAM.replace("contexts=4", f"contexts=4, backend={backend!r} or None")
    if backend:
        program = program.replace("10_000", "2_000").replace("2 + 5", "1 + 1")
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert (done.stdout, done.returncode) == ("flat\n", 0), done.stderr
