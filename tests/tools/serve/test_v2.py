"""`litegpu serve` with KServe's protocol: answers, errors, limits, faulty clients."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu import CompiledModel
from litegpu.compiled_model import HardwareAccelerator
from litegpu.tools import cli
from litegpu.tools.picture_flag import default_picture
from litegpu.zoo import ModelWriter
from served import Server, ask, serving
from small_models import encode_and_decode, shifted

for package in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="needs litegpu[serve]")
CPU = "--backend=cpu"
PICTURES = "mobilenet_v1_0.25_128"
ROW = np.arange(4, dtype=np.float32)
MODELS = ("/v2/models/plain", "/v2/models/plain/versions/1")
LENGTH = "inference-header-content-length"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "plain.tflite").write_bytes(shifted())
    (folder / "parts.tflite").write_bytes(encode_and_decode())
    for version in (2, 10):
        (folder / "many" / str(version)).mkdir(parents=True)
        (folder / "many" / str(version) / "model.tflite").write_bytes(shifted((1, version)))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    models = ("plain.tflite", "parts=parts.tflite", "many", f"zoo:{PICTURES}")
    limits = ("--max_body_mb=1", "--max_batch=4")
    with serving(folder, *models, CPU, *limits) as found:
        yield found


def given(array: Any, **fields: Any) -> dict[str, Any]:
    array = np.asarray(array, np.float32)
    data = {"name": "input", "datatype": "FP32", "shape": [*array.shape], "data": array.tolist()}
    return {"inputs": [{**data, **fields}]}


def binary(array: Any) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request with binary data and a binary answer."""
    array = np.asarray(array, np.float32)
    found = given(array, parameters={"binary_data_size": array.nbytes})
    del found["inputs"][0]["data"]
    text = json.dumps({**found, "parameters": {"binary_data_output": True}}).encode()
    return text + array.tobytes(), {LENGTH: str(len(text))}


def values(answer: tuple[int, Any]) -> np.ndarray[Any, Any]:
    assert answer[0] == 200, answer
    (output,) = answer[1]["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def test_the_server_describes_itself_and_its_models(server: Server) -> None:
    status, found = server.json("GET", "/v2")
    assert (status, found["name"], found["extensions"]) == (200, "litegpu", ["binary_tensor_data"])
    assert server.json("GET", "/v2/health/live") == (200, {"live": True})
    assert server.json("GET", "/v2/health/ready") == (200, {"ready": True})
    tensor = {"datatype": "FP32", "shape": [-1, 4]}
    for path in MODELS:
        assert server.json("GET", f"{path}/ready") == (200, {"name": "plain", "ready": True})
        status, found = server.json("GET", path)
        (output,) = found.pop("outputs")
        assert (output["datatype"], output["shape"]) == ("FP32", [-1, 4])
        assert found == {
            "name": "plain",
            "versions": ["1"],
            "platform": "tflite",
            "inputs": [{"name": "input", **tensor}],
        }


def test_versions_of_a_model(server: Server) -> None:
    assert server.json("GET", "/v2/models/many")[1]["versions"] == ["2", "10"]
    for path, count in (("", 10), ("/versions/10", 10), ("/versions/2", 2)):
        found = server.json("POST", f"/v2/models/many{path}/infer", given(np.zeros((1, count))))
        assert values(found).tolist() == [[*range(count)]]
        assert found[1]["model_version"] == str(count)


def test_answers_are_json_or_binary(server: Server) -> None:
    rows = np.array([[1, -2, 3, -9], [0, 0, 0, 0.5]])
    request = {**given(rows), "id": "a"}
    status, found = server.json("POST", f"{MODELS[0]}/infer", request)
    assert values((status, found)).tolist() == np.abs(rows + ROW).tolist()
    assert (found["id"], found["model_name"]) == ("a", "plain")
    status, headers, content = server.ask("POST", f"{MODELS[0]}/infer", *binary(rows))
    size = int(headers[LENGTH])
    output = json.loads(content[:size])["outputs"][0]
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert output["parameters"] == {"binary_data_size": 32}
    assert np.frombuffer(content[size:], np.float32).tolist() == np.abs(rows + ROW).ravel().tolist()


def test_signatures_are_chosen_by_a_parameter(server: Server) -> None:
    described = server.json("GET", "/v2/models/parts")[1]
    assert sorted(described["signatures"]) == ["decode", "encode"]
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 2, 2, 4)
    for name, wanted in (("encode", np.abs(x)), ("decode", 1 / (1 + np.exp(-x)))):
        request = {**given(x, name="x"), "parameters": {"signature": name}}
        found = values(server.json("POST", "/v2/models/parts/infer", request))
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    request["parameters"]["signature"] = "encod"
    status, found = server.json("POST", "/v2/models/parts/infer", request)
    assert status == 400 and "no signature 'encod'. Did you mean 'encode'?" in found["error"]


def test_pictures_are_bytes(server: Server) -> None:
    picture = Path(default_picture()).read_bytes()
    encoded = {"datatype": "BYTES", "shape": [2], "data": [base64.b64encode(picture).decode()] * 2}
    request = given(ROW, **encoded, parameters={"content_type": "base64"})
    path = f"/v2/models/{PICTURES}/infer"
    found = values(server.json("POST", path, request))
    name = f"zoo:{PICTURES}"
    with CompiledModel.from_file(name, HardwareAccelerator.CPU, input_format="rgb8") as model:
        wanted = model(picture)
    np.testing.assert_allclose(found, np.concatenate([wanted, wanted]), atol=1e-5)
    request["inputs"][0]["data"] = [base64.b64encode(b"no picture").decode()] * 2
    status, answer = server.json("POST", path, request)
    assert status == 400 and "The picture '(10 bytes)' cannot be read" in answer["error"]
    status, answer = server.json("POST", path, given(ROW, datatype="BYTES", shape=[0], data=[]))
    assert (status, "was given no picture" in answer["error"]) == (400, True)


WRONG = {
    "input 'inputt'": (given([ROW], name="inputt"), "no input 'inputt'. Did you mean 'input'?"),
    "no input": ({"inputs": []}, "The request lacks the inputs ['input']"),
    "a type": (given([ROW], datatype="FP64"), "Input 'input' is FP32, and was given FP64"),
    "texts": (given([ROW], datatype="BYTES", shape=[1], data=["a"]), "and was given BYTES"),
    "a shape": (given([[1, 2]]), "has the shape [-1, 4], and was given [1, 2]"),
    "no rows": (given(np.zeros((0, 4))), "A request has [0] rows"),
    "many rows": (given(np.zeros((5, 4))), "Give all inputs the same number, 1 to 4"),
    "an output": ({**given([ROW]), "outputs": [{"name": "z"}]}, "The model has no output 'z'"),
    "JSON": (b"{]", "The body is not valid JSON"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_requests_are_answered_by_what_is_wrong(server: Server, what: str) -> None:
    body, message = WRONG[what]
    status, answer = server.json("POST", f"{MODELS[0]}/infer", body)
    assert status == 400 and message in answer["error"], answer


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v2/models/plane", 404, "There is no model 'plane'. Did you mean 'plain'?"),
        ("POST", "/v2/models/..%2F..%2Fetc/infer", 404, "Not Found"),
        ("POST", "/v2/models/../../plain.tflite/infer", 404, "Not Found"),
        ("GET", "/v2/models/plain%00", 404, "There is no model"),
        ("GET", "/v2/models/plain/versions/3", 404, "has no version '3'. It has 1."),
        ("GET", "/v2/models/plain/versions/..", 404, "has no version '..'."),
        ("GET", "/v2/models/plain/infer", 405, "Method Not Allowed"),
        ("GET", "/v3", 404, "GET /v3: Not Found. The paths /v2"),
    ],
)
def test_what_does_not_exist(
    server: Server, method: str, path: str, status: int, message: str
) -> None:
    found, answer = server.json(method, path, given([ROW]) if method == "POST" else None)
    assert found == status and message in answer["error"], answer


def test_bodies_have_a_limit(server: Server) -> None:
    path = f"{MODELS[0]}/infer"
    status, answer = server.json("POST", path, b" " * 1_000_001)
    assert status == 413 and "more than 1000000 bytes (--max_body_mb)" in answer["error"]
    with contextlib.closing(server.connect()) as connection:  # in chunks, without a length
        connection.request("POST", path, iter([b" " * 100_000] * 11), encode_chunked=True)
        assert connection.getresponse().status == 413
    with contextlib.closing(server.connect()) as connection:
        parts = json.dumps(given([ROW])).encode()
        connection.request("POST", path, iter([parts[:9], parts[9:]]), encode_chunked=True)
        assert connection.getresponse().status == 200
    status, _, content = server.ask("POST", path, b"a", {"content-encoding": "gzip"})
    assert (
        status == 415 and b"content-encoding 'gzip'. Send the body without an encoding" in content
    )


def test_64_clients_get_their_own_answers_and_memory_is_flat(server: Server) -> None:
    """1,280 requests; after the first half the memory no longer grows."""
    path = f"{MODELS[0]}/infer"

    def client(number: int) -> int:
        with contextlib.closing(server.connect()) as connection:
            for turn in range(10):
                rows = np.full((1 + number % 3, 4), number * 100 + turn, np.float32)
                if turn % 2:
                    _, headers, content = ask(connection, "POST", path, *binary(rows))
                    found = np.frombuffer(content[int(headers[LENGTH]) :], np.float32)
                else:
                    _, _, content = ask(connection, "POST", path, given(rows))
                    found = np.array(json.loads(content)["outputs"][0]["data"], np.float32)
                np.testing.assert_array_equal(found, (rows + ROW).ravel())
        return number

    def resident() -> float:
        return server.metric("process_resident_memory_bytes")

    counted = 'litegpu_requests_total{model="plain",status="200",version="1"}'
    before, sizes = server.metric(counted), []
    for _ in range(2):
        with ThreadPoolExecutor(64) as clients:
            assert [*clients.map(client, range(64))] == [*range(64)]
        sizes.append(resident())
    assert server.metric(counted) == before + 1280
    assert sizes[1] - sizes[0] < 8e6
    assert server.metric('litegpu_requests_pending{model="plain",version="1"}') == 0


def raw(server: Server, content: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(content)
    return connection


POST = b"POST /v2/models/plain/infer HTTP/1.1\r\nhost: a\r\n"


def test_clients_that_misbehave_harm_no_other(server: Server) -> None:
    gone = server.metric('litegpu_requests_total{model="plain",status="499",version="1"}')
    raw(server, POST + b"content-length: 1000\r\n\r\n{").close()
    raw(server, POST + b"transfer-encoding: chunked\r\n\r\nfff\r\n{").close()
    server.wait_for('litegpu_requests_total{model="plain",status="499",version="1"}', gone + 2)
    for content in (
        POST + b"a: " + b"b" * 200_000,
        POST + b"".join(b"a%d: b\r\n" % number for number in range(20_000)),
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        POST + b"content-length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ):
        with raw(server, content) as connection, contextlib.suppress(ConnectionError):
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    huge = given([ROW], shape=[10**9], parameters={"binary_data_size": 4 * 10**9})
    del huge["inputs"][0]["data"]
    status, answer = server.json("POST", f"{MODELS[0]}/infer", huge)
    assert status == 400 and "and 0 bytes remain in the body" in answer["error"]
    assert values(server.json("POST", f"{MODELS[0]}/infer", given([ROW]))).tolist() == [
        [0, 2, 4, 6]
    ]
    assert "Traceback" not in server.log.read_text()


def begun(server: Server, size: int) -> socket.socket:
    """Return a connection on which a request is incomplete: the last of its bytes is missing."""
    body = json.dumps(given([ROW])).encode().rjust(size)
    connection = raw(server, POST + b"content-length: %d\r\n\r\n" % size + body[:-1])
    assert body.endswith(b"}")
    return connection


def test_limits_of_waiting_requests_and_the_end(folder: Path) -> None:
    pending = 'litegpu_requests_pending{model="plain",version="1"}'
    path = f"{MODELS[0]}/infer"
    flags = ("--max_queue=4", "--max_memory_mb=0.001", "--drain_timeout=8")
    with serving(folder, "plain.tflite", CPU, *flags) as server:
        request = {**given([ROW]), "parameters": {"timeout": 1}}
        status, answer = server.json("POST", path, request)
        assert status == 504 and "within its timeout of 1e-06 seconds" in answer["error"]
        first = [begun(server, 200) for _ in range(4)]
        server.wait_for(pending, 4)
        status, headers, content = server.ask("POST", path, given([ROW]))
        assert (status, headers["retry-after"]) == (429, "1")
        assert b"4 requests of the model 'plain' are waiting already (--max_queue)" in content
        first.pop().close()
        server.wait_for(pending, 3)
        status, answer = server.json("POST", path, b" " * 900)
        assert status == 503 and "(--max_memory_mb)" in answer["error"]
        idle = server.connect()
        assert ask(idle, "GET", "/v2/health/live")[0] == 200

        server.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + 60
        with pytest.raises(ConnectionError):
            # Connects only: a connection of the last moment is never answered, nor closed before
            # the server's end (asyncio drops it).
            while time.monotonic() < until:
                socket.create_connection(("127.0.0.1", server.port), timeout=30).close()
                time.sleep(0.02)
        for connection in first[1:]:
            connection.sendall(b"}")
        answers = [whole(connection) for connection in first]
        assert server.process.wait(60) == 0
        idle.close()
    assert b"HTTP/1.1 503" in answers[0] and b"The server is shutting down" in answers[0]
    for each in answers[1:]:
        assert b"HTTP/1.1 200" in each and b'"data": [0.0, 2.0, 4.0, 6.0]' in each
    assert server.log.read_text().endswith("ended\n")


def test_no_request_of_busy_clients_is_lost_at_the_end(folder: Path) -> None:
    path, statuses = f"{MODELS[0]}/infer", Counter[int]()

    def send_requests(server: Server) -> None:
        with contextlib.closing(server.connect()) as connection:
            while True:
                status, headers, _ = ask(connection, "POST", path, given([ROW]))
                statuses[status] += 1
                if headers.get("connection") == "close":
                    return

    with serving(folder, "plain.tflite", CPU) as server, ThreadPoolExecutor(16) as clients:
        running = [clients.submit(send_requests, server) for _ in range(16)]
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        for each in running:
            each.result(60)
        assert server.process.wait(60) == 0
    assert {*statuses} <= {200, 503} and statuses[200] > 16


def whole(connection: socket.socket) -> bytes:
    """Return what comes on a connection until it is closed."""
    with connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_slow_requests_and_slow_readers_end(folder: Path) -> None:
    """A client that reads nothing of 16 MB, and one that does not finish its request."""
    writer = ModelWriter()
    x = writer.input((1, 4))
    row = writer.constant(np.zeros((1 << 20, 4), np.float32), name="rows")
    writer.output(writer.op("ADD", [x, row], [(1 << 20, 4)]))
    (folder / "large.tflite").write_bytes(writer.build())
    body, headers = binary([ROW])
    with serving(folder, "plain.tflite", "large.tflite", CPU, "--timeout=4") as server:
        pending = 'litegpu_requests_pending{model="large",version="1"}'
        lines = {"content-length": str(len(body)), **headers}
        start = POST.replace(b"plain", b"large")
        start += b"".join(f"{name}: {value}\r\n".encode() for name, value in lines.items())
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", server.port))
            slow.sendall(start + b"\r\n" + body)
            server.wait_for('litegpu_requests_total{model="large",status="200",version="1"}', 1)
            server.wait_for(pending, 0)
        with begun(server, 200) as late:
            assert late.recv(1000).startswith(b"HTTP/1.1 408")
        assert server.json("GET", "/v2/health/live")[0] == 200


def test_a_bad_command_line_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["serve", "none.tflite", "--port=0"]) == 1
    assert "No model 'none.tflite'" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["serve", str(folder / "plain.tflite"), f"--port={port}"]) == 2
    assert f"--port={port}: the address cannot be used: " in capsys.readouterr().err
    assert cli.main(["serve", "a.tflite", "--port=99999"]) == 2
    assert "the address cannot be used" in capsys.readouterr().err
    assert cli.main(["serve"]) == 2
    assert "arguments are required: MODEL. For example: litegpu serve" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve", "a.tflite", "--port=0"]) == 1
    assert "pip install 'litegpu[serve]'" in capsys.readouterr().err
