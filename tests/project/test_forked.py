"""Programs that are forked end as programs that are started do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forked

ENVIRONMENT = {**os.environ, "PYTHONPATH": "", "NAME": "here"}


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys; print(os.getcwd(), os.environ['NAME'], sys.argv, sys.stdin.read())",
        "import atexit; atexit.register(print, 'the end'); raise SystemExit(3)",
        "import sys; print('on both', file=sys.stderr); sys.exit('a reason')",
        "import os; os.abort()",
        "import sys; print([name for name in sys.modules if name.startswith('litegpu')])",
    ],
)
def test_a_program_ends_as_if_it_was_started(code: str, tmp_path: Path) -> None:
    command = ["-c", code, "one", "two"]
    expected = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    found = forked.run(command, tmp_path, ENVIRONMENT)
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert found.stderr == expected.stderr


def test_an_error_is_told(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import other\nprint(other.VALUE, __name__)\n1 / 0\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("VALUE = 7\n", encoding="utf-8")
    for command in ([str(file)], ["-m", "program"]):
        found = forked.run(command, tmp_path, ENVIRONMENT)
        assert (found.returncode, found.stdout) == (1, "7 __main__\n")
        assert found.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs timers")
def test_a_program_that_hangs_is_killed(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"more than 0\.2 s"):
        forked.run(["-c", "while True: pass"], tmp_path, ENVIRONMENT, timeout=0.2)
