"""`litegpu serve --grpc_port`: KServe's protocol over gRPC."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from litegpu.tools import cli
from places import SUPPORT, python_path
from served import serving
from small_models import shifted

for package in ("starlette", "uvicorn", "prometheus_client", "grpc"):
    if importlib.util.find_spec(package) is None:  # gRPC is not imported here: it dislikes forks
        pytest.skip("needs litegpu[grpc]", allow_module_level=True)
CPU = "--backend=cpu"


def test_messages_have_the_numbers_of_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "plain.tflite").write_bytes(shifted())
    with serving(tmp_path, "plain.tflite", CPU, "--grpc_port=0") as server:
        assert server.json("GET", "/v2/health/live")[0] == 200
        port = re.search(r"^serving gRPC at 127\.0\.0\.1:(\d+)$", server.log.read_text(), re.M)
        assert port is not None
        environment = {**os.environ, "PYTHONPATH": python_path()}
        command = [sys.executable, str(SUPPORT / "grpc_client.py"), port[1]]
        subprocess.run(command, env=environment, timeout=120, check=True)
        answered = 'litegpu_requests_total{model="plain",status="200",version="1"}'
        assert server.metric(answered) == 160
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert "Traceback" not in server.log.read_text()


def test_a_port_in_use_and_a_missing_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.tflite").write_bytes(shifted())
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "litegpu", "serve", "plain.tflite", CPU, "--port=0"]
        ended = subprocess.run(
            [*command, f"--grpc_port={port}"],
            env={**os.environ, "PYTHONPATH": python_path()},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 2
    assert f"--grpc_port={port}: the address cannot be used. Give another one" in ended.stderr
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert cli.main(["serve", "a.tflite", "--grpc_port=0"]) == 1
    assert "pip install 'litegpu[grpc]'" in capsys.readouterr().err
