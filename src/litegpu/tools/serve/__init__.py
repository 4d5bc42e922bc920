"""`litegpu serve MODEL…`: an HTTP server with the protocols of KServe and OpenAI."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from typing import Any

from litegpu.compiled_model import CompiledModel, HardwareAccelerator
from litegpu.errors import missing_dependency
from litegpu.host.optional_packages import load
from litegpu.tools.console import note
from litegpu.tools.delegation import given_options, quietly
from litegpu.tools.flags import Flag, at_least, divisor, from_zero, number, positive, positive_int
from litegpu.tools.language import LANGUAGE_DELEGATE_FLAGS, MODEL_FLAGS, open_language_model
from litegpu.tools.models import RANDOM_WEIGHTS, find_model
from litegpu.tools.serve.repository import Entry, entries_of
from litegpu.wording import counted

ARGUMENTS = {
    "model": "a model file, NAME=FILE, a known name, zoo:NAME, or a folder NAME/1/model.tflite"
}
MANY = ("model",)
_SERVER_FLAGS = (
    Flag("host", str, "127.0.0.1", "the address to listen at; 0.0.0.0 for all"),
    Flag("port", at_least(0), 8000, "the port to listen at; 0 for any free one"),
    Flag(
        "grpc_port", at_least(0), None, "answer gRPC requests at this port, too (default: no gRPC)"
    ),
    Flag("max_connections", positive_int, 1024, "maximum number of connections"),
    Flag("max_queue", positive_int, 256, "maximum number of requests per model that wait or run"),
    Flag("max_body_mb", positive, 64.0, "maximum size of a request in MB"),
    Flag(
        "max_memory_mb",
        positive,
        1024.0,
        "maximum total size in MB of the requests that wait or run",
    ),
    Flag(
        *("timeout", positive, 60.0),
        "limit in seconds for receiving a request, for answering it, and for the client to read a "
        "part",
    ),
    Flag(
        "drain_timeout",
        positive_int,
        30,
        "seconds after SIGTERM in which requests in flight are answered",
    ),
)
_BATCH_FLAGS = (
    Flag(
        "max_batch",
        positive_int,
        8,
        "maximum number of rows of a batch of requests; 1: no batching",
    ),
    Flag(
        "max_delay_ms",
        from_zero,
        1.0,
        "milliseconds that a request waits for others of the same batch",
    ),
    Flag("contexts", positive_int, 1, "number of parallel runs of a model without batching"),
    Flag(
        "input_mean",
        number,
        127.5,
        "float inputs of pictures sent as bytes get (pixel - input_mean) / input_std",
    ),
    Flag("input_std", divisor, 127.5, "see input_mean"),
)
_ANSWERS = Flag(
    *("max_answers", positive_int, 4),
    "maximum number of parallel answers of a language model, each with a KV cache",
)
FLAGS = (*_SERVER_FLAGS, *_BATCH_FLAGS, _ANSWERS, *MODEL_FLAGS)
EXAMPLES = (
    "litegpu serve mobilenet_v2_1.0_224",
    "litegpu serve faces=face_landmark.tflite gemma.litertlm --backend=cuda",
    "litegpu serve models --host=0.0.0.0 --port=8080 --max_batch=32",
    "litegpu serve zoo:tiny_lm --backend=cpu",
)
NOTES = (
    "Models answer KServe's version 2 protocol (/v2/models/NAME/infer); language models answer "
    "OpenAI's /v1/completions and /v1/chat/completions. /metrics is for Prometheus. SIGTERM and "
    "Ctrl+C end the server once the requests in flight are answered.",
    "A folder may contain several models in several versions: models/NAME/1/model.tflite.",
)


def main(args: argparse.Namespace) -> int:
    """Run the server until SIGTERM or SIGINT."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        load(package, package, partial(missing_dependency, package, "serve", "`litegpu serve`"))
    if args.grpc_port is not None:
        for package, module in (("grpcio", "grpc"), ("protobuf", "google.protobuf")):
            load(package, module, partial(missing_dependency, package, "grpc", "--grpc_port"))
    from litegpu.tools.serve import app
    from litegpu.tools.serve.web import Limits

    entries = entries_of(args.model)
    address = app.Address(args.host, args.port, args.max_connections, args.drain_timeout)
    gate = app.new_gate(
        Limits(
            args.max_queue,
            int(args.max_body_mb * _MB),
            int(args.max_memory_mb * _MB),
            args.timeout,
        )
    )
    with ExitStack() as opened:
        listener = opened.enter_context(app.bound(address))
        models = []
        for entry in entries:
            models.append(_open(entry, args))
            opened.callback(models[-1].close)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        note(f"serving {counted(len(models), 'model')} at http://{shown}:{port}")
        companion = None if args.grpc_port is None else _grpc(args, models, gate)
        app.run(app.application(models, gate), gate, address, listener, companion)
    note("ended")
    return 0


_MB = 10**6


def _grpc(args: argparse.Namespace, models: Any, gate: Any) -> Any:
    """Return the gRPC server."""
    from litegpu.tools.serve.grpc_server import GrpcServer

    return GrpcServer(models, gate, args.host, args.grpc_port)


def _open(entry: Entry, args: argparse.Namespace) -> Any:
    """Open a model for serving. Raises as CompiledModel and Batcher do."""
    from litegpu.tools.serve.language import ServedLanguageModel
    from litegpu.tools.serve.served import Batching, GraphModel

    if entry.is_language_model(args.tokenizer is not None):
        text_model = open_language_model(argparse.Namespace(**{**vars(args), "model": entry.path}))
        return ServedLanguageModel(entry.name, entry.version, text_model, args.max_answers)
    found = find_model(entry.path)
    options = given_options(args, LANGUAGE_DELEGATE_FLAGS)
    if options.get("backend") == "cpu":
        del options["backend"]
        options["hardware_accel"] = HardwareAccelerator.CPU
    with quietly():
        model = CompiledModel(found.content, contexts=args.contexts, **options)
        try:
            served = GraphModel(
                entry.name,
                entry.version,
                model,
                Batching(args.max_batch, args.max_delay_ms),
                args.input_mean,
                args.input_std,
            )
        except BaseException:
            model.close()
            raise
    batches = f", batches of up to {args.max_batch}" if served.batched else ""
    note(f"model: {entry.name} version {entry.version}, {found.source}, {model.place}{batches}")
    if found.has_random_weights:
        note(RANDOM_WEIGHTS)
    return served
