"""The metrics of the endpoint `/metrics`, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_MODEL = ("model", "version")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        registry = self._registry
        self._requests = Counter(
            "litegpu_requests",
            "Requests to a model that were answered, by status.",
            (*_MODEL, "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "litegpu_request_seconds",
            "Seconds from the headers of a request to the end of its answer.",
            _MODEL,
            buckets=_SECONDS,
            registry=registry,
        )
        self._pending = Gauge(
            "litegpu_requests_pending",
            "Requests that wait or run.",
            _MODEL,
            registry=registry,
        )
        self._tokens = Counter(
            "litegpu_tokens",
            "Tokens of prompts and answers of a language model.",
            (*_MODEL, "kind"),
            registry=registry,
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        found: bytes = prometheus_client.generate_latest(self._registry)
        return found

    @contextmanager
    def pending(self, name: str, version: str) -> Iterator[None]:
        """Count a request of a model as pending inside the context, and measure its duration."""
        begin = perf_counter()
        with self._pending.labels(name, version).track_inprogress():
            yield
        self._seconds.labels(name, version).observe(perf_counter() - begin)

    def answered(self, name: str, version: str, status: int) -> None:
        """Count an answer by its status."""
        self._requests.labels(name, version, status).inc()

    def tokens(self, name: str, version: str, prompt: int, answer: int) -> None:
        """Count the tokens of a language model's answer and of the prompt."""
        self._tokens.labels(name, version, "prompt").inc(prompt)
        self._tokens.labels(name, version, "answer").inc(answer)
