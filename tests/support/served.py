"""`litegpu serve` in a separate process, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from places import python_path


@dataclass
class Server:
    """A server that runs."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the answer to a request; objects are sent as JSON."""
        with contextlib.closing(self.connect()) as connection:
            return ask(connection, method, path, body, headers)

    def json(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and JSON of the answer."""
        status, _, content = self.ask(method, path, body)
        return status, json.loads(content)

    def metric(self, line: str) -> float:
        """Return the value of a metric, 0 where there is none."""
        text = self.ask("GET", "/metrics")[2].decode()
        found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_for(self, line: str, value: float) -> None:
        """Wait until a metric has a value."""
        until = time.monotonic() + 60
        while self.metric(line) != value:
            assert time.monotonic() < until, f"{line} is {self.metric(line)}, not {value}"
            time.sleep(0.02)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the answer to a request on a connection."""
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    connection.request(method, path, content, headers or {})
    answer = connection.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, found, answer.read()


@contextlib.contextmanager
def serving(folder: Path, *arguments: object) -> Iterator[Server]:
    """Run a server on a free port while the context is open, and end it."""
    log = folder / f"server-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "litegpu", "serve", "--port=0", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stderr=errors, cwd=folder, env=environment, text=True) as process,
    ):
        try:
            yield Server(process, _port(process, log), log)
        finally:
            if process.poll() is None:
                process.kill()


def _port(process: subprocess.Popen[str], log: Path) -> int:
    until = time.monotonic() + 120
    while not (found := re.search(r"^serving .* at http://.*:(\d+)$", log.read_text(), re.M)):
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    return int(found[1])
