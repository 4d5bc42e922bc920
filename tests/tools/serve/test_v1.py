"""`litegpu serve` with OpenAI's protocol: answers, streams, clients that disconnect."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from litegpu import LanguageModel
from litegpu.errors import RequestError
from litegpu.tools.serve.jobs import job_of
from served import Server, serving
from small_models import shifted

for package in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="needs litegpu[serve]")
pytest.importorskip("tokenizers", reason="needs litegpu[llm]")
NAME = "zoo:tiny_lm?layers=1&context=512"
CPU = "--backend=cpu"
LABELS = 'model="lm",version="1"'
PENDING = f"litegpu_requests_pending{{{LABELS}}}"
HI = [{"role": "user", "content": "Hi"}]
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 3}


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with LanguageModel(NAME, backend="cpu") as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "plain.tflite").write_bytes(shifted())
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder, f"lm={NAME}", "plain.tflite", CPU, "--max_body_mb=0.1") as found:
        yield found


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "lm", "prompt": "The sky", "max_tokens": 12, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "lm", "messages": HI, "max_tokens": 12, **fields}


def streamed(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream."""
    status, headers, content = server.ask("POST", path, {**body, "stream": True})
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    *events, done, rest = content.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(each.startswith("data: ") for each in events)
    return [json.loads(each[6:]) for each in events]


def test_models_are_listed(server: Server) -> None:
    status, found = server.json("GET", "/v1/models")
    (only,) = found["data"]
    assert (status, found["object"], only["id"], only["object"]) == (200, "list", "lm", "model")
    assert server.json("GET", "/v1/models/lm") == (200, only)
    assert server.json("GET", "/v2/models/lm")[1]["platform"] == "language_model"
    for name in ("plain", "lm:2", "..%2Flm"):
        status, found = server.json("GET", f"/v1/models/{name}")
        assert status == 404 and found["error"]["message"], name
    status, found = server.json("POST", "/v2/models/lm/infer", {"inputs": []})
    assert status == 400 and "'lm' is a language model. Use /v1/completions" in found["error"]


@pytest.mark.parametrize(
    "fields",
    [{}, SAMPLED, {"stop": ["K", "zz"]}, {"stop": "K"}, {"prompt": [1, 20, 30]}, {"top_k": 2}],
)
def test_completions_are_those_of_the_model(
    server: Server, model: LanguageModel, fields: dict[str, Any]
) -> None:
    given = completion(**fields)
    options = {name: value for name, value in given.items() if name not in ("model", "prompt")}
    wanted = model.generate(given["prompt"], **options)
    status, found = server.json("POST", "/v1/completions", given)
    (choice,) = found["choices"]
    assert (status, found["object"], choice["text"]) == (200, "text_completion", wanted.text)
    assert choice["finish_reason"] == wanted.reason
    usage = {"prompt_tokens": wanted.prompt_tokens, "completion_tokens": len(wanted.tokens)}
    assert found["usage"] == {**usage, "total_tokens": sum(usage.values())}
    events = streamed(server, "/v1/completions", given)
    assert "".join(each["choices"][0]["text"] for each in events) == wanted.text
    assert [each["choices"][0]["finish_reason"] for each in events[-2:]] == [None, wanted.reason]


def test_several_prompts_have_an_answer_each(server: Server, model: LanguageModel) -> None:
    prompts = ["a", "b", "c"]
    _, found = server.json("POST", "/v1/completions", completion(prompt=prompts))
    wanted = [model.generate(each, max_tokens=12).text for each in prompts]
    assert [(each["index"], each["text"]) for each in found["choices"]] == [*enumerate(wanted)]
    assert found["usage"]["completion_tokens"] == 36


def test_chats_are_those_of_the_model(server: Server, model: LanguageModel) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    system = {"role": "developer", "content": "Be brief."}
    for messages in (HI, [{"role": "user", "content": parts}], [system, *HI]):
        with_system = len(messages) > 1
        same = [{"role": "system", "content": "Be brief."}, *HI] if with_system else HI
        wanted = model.generate(same, max_tokens=12, **SAMPLED)
        given = chat(messages=messages, **SAMPLED)
        _, found = server.json("POST", "/v1/chat/completions", given)
        message = found["choices"][0]["message"]
        assert (message["role"], message["content"]) == ("assistant", wanted.text)
        given["stream_options"] = {"include_usage": True}
        first, *events, usage = streamed(server, "/v1/chat/completions", given)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        deltas = [each["choices"][0]["delta"] for each in events]
        assert "".join(each.get("content", "") for each in deltas) == wanted.text
        assert len(events) > 4 and deltas[-1] == {}
        assert usage["usage"] == found["usage"] and usage["choices"] == []
        assert {each["usage"] for each in (first, *events)} == {None}
        assert len({each["id"] for each in (first, *events, usage)}) == 1


def test_logprobs(server: Server, model: LanguageModel) -> None:
    wanted = model.generate(HI, max_tokens=12, logprobs=3)
    given = chat(logprobs=True, top_logprobs=3)
    _, found = server.json("POST", "/v1/chat/completions", given)
    content = found["choices"][0]["logprobs"]["content"]
    assert [each["logprob"] for each in content] == [each.logprob for each in wanted.logprobs]
    assert [each["token"] for each in content] == [model.detokenize([n]) for n in wanted.tokens]
    top = [[each["logprob"] for each in token["top_logprobs"]] for token in content]
    assert top == [[value for _, value in each.top] for each in wanted.logprobs]
    events = streamed(server, "/v1/chat/completions", given)
    parts = [each["choices"][0]["logprobs"] for each in events[1:]]
    assert [token for part in parts for token in part["content"]] == content

    wanted = model.generate("The sky", max_tokens=12, logprobs=2)
    _, found = server.json("POST", "/v1/completions", completion(logprobs=2))
    logprobs = found["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [each.logprob for each in wanted.logprobs]
    assert found["usage"]["completion_tokens"] == 12
    ends = [sum(map(len, logprobs["tokens"][:count])) for count in range(12)]
    assert logprobs["text_offset"] == ends


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field": (completion(prompts="a"), "Unrecognized field 'prompts'. Did you mean 'pr"),
    "several answers": (completion(n=2), "'n' is 2, which is not supported"),
    "tools": (chat(tools=[{}]), "'tools' is [{}], which is not supported"),
    "no model": ({"prompt": "a"}, "'model' is missing or no text"),
    "no prompt": ({"model": "lm"}, "'prompt' is null. Give a text"),
    "a prompt of both": (completion(prompt=["a", 1]), "'prompt' is [\"a\", 1]. Give a text"),
    "many prompts": (completion(prompt=["a"] * 65), "or up to 64 of these"),
    "no messages": ({"model": "lm", "messages": []}, "'messages' is missing, or is not a list"),
    "no content": (chat(messages=[{"role": "user"}]), 'A message is {"role": "user"}. Give'),
    "a picture": (
        chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        "a text or parts of the type text",
    ),
    "a stop of a number": (completion(stop=5), "'stop' is 5. Give a string, or a list of up to 4"),
    "many stops": (completion(stop=["a"] * 5), "Give a string, or a list of up to 4"),
    "no stream": (completion(stream=1), "'stream' is 1. Use true or false"),
    "options of text": (completion(stream_options="a"), "'stream_options' is no object"),
    "many logprobs": (completion(logprobs=6), "'logprobs' is 6. Use a whole number from 0 to 5"),
    "top without logprobs": (chat(top_logprobs=2), "'top_logprobs' needs 'logprobs': true"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_request_is_said(what: str) -> None:
    found, message = WRONG[what]
    with pytest.raises(RequestError) as rejected:
        job_of(found, chat="messages" in found)
    assert message in str(rejected.value)


def test_errors_are_those_of_the_protocol(server: Server) -> None:
    long = completion(prompt="x" * 2000)
    for body, status, code, message in (
        (b"{", 400, None, "The body is not valid JSON"),
        (completion(n=2), 400, None, "'n' is 2"),
        (completion(model="lm2"), 404, "model_not_found", "no model 'lm2'. Did you mean 'lm'?"),
        (completion(temperature=-1), 400, None, "temperature is -1. Use 0 or more."),
        (completion(prompt=[1, 10**30]), 400, None, "is no token of the model"),
        (completion(max_tokens=0), 400, None, "max_tokens is 0"),
        (b'{"model": "lm", "prompt": "\\ud800"}', 400, None, "an unpaired surrogate"),
        (long, 400, "context_length_exceeded", "do not fit the cache of 512"),
        ({**long, "stream": True}, 400, "context_length_exceeded", "do not fit the cache"),
        (b" " * 100_001, 413, None, "(--max_body_mb)"),
    ):
        found, answer = server.json("POST", "/v1/completions", body)
        error = answer["error"]
        assert (found, error["code"]) == (status, code) and message in error["message"], answer
        assert error["type"] == "invalid_request_error"
    assert server.json("GET", "/v1/completions")[0] == 405
    assert server.json("POST", "/v1/edits", {})[1]["error"]["code"] is None


def opened(server: Server, body: dict[str, Any]) -> http.client.HTTPConnection:
    """Return a connection on which the first event of a stream has come."""
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline().startswith(b"data: ")
    connection.answer = answer  # type: ignore[attr-defined]
    return connection


def test_32_chats_at_once_of_which_some_leave(server: Server, model: LanguageModel) -> None:
    prompts = [f"Hello {number}" for number in range(4)]
    wanted = [model.generate(each, max_tokens=12).text for each in prompts]

    def client(number: int) -> None:
        given = completion(prompt=prompts[number % 4])
        if number % 5 == 0:
            opened(server, {**given, "max_tokens": 400}).close()
            return
        status, found = server.json("POST", "/v1/completions", given)
        assert (status, found["choices"][0]["text"]) == (200, wanted[number % 4])

    with ThreadPoolExecutor(32) as clients:
        assert len([*clients.map(client, range(64))]) == 64
    server.wait_for(PENDING, 0)
    assert "Traceback" not in server.log.read_text()


def test_answers_whose_clients_leave_end_and_the_server_answers_the_rest(folder: Path) -> None:
    """An answer of this model takes minutes: one runs, and one waits, at a time."""
    endless = f"lm={NAME.replace('512', '16384')}"
    flags = ("--max_queue=2", "--max_answers=1", "--timeout=90")
    with serving(folder, endless, CPU, *flags) as server:
        long = completion(max_tokens=None)
        running = opened(server, long)
        waiting = server.connect()
        waiting.request("POST", "/v1/completions", json.dumps(long))
        server.wait_for(PENDING, 2)
        status, answer = server.json("POST", "/v1/completions", completion())
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        waiting.close()
        server.wait_for(PENDING, 1)
        running.close()
        server.wait_for(PENDING, 0)

        wanted = server.json("POST", "/v1/completions", completion(max_tokens=60))[1]["choices"]
        last = opened(server, completion(max_tokens=60))
        server.process.send_signal(signal.SIGTERM)
        events = last.answer.read().decode().split("\n\n")  # type: ignore[attr-defined]
        assert events[-2] == "data: [DONE]"
        texts = [json.loads(each[6:])["choices"][0]["text"] for each in events[1:-2]]
        assert texts and wanted[0]["text"].endswith("".join(texts))
        assert server.process.wait(60) == 0
    assert "Traceback" not in server.log.read_text()
