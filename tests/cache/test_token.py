"""Tokens of models: FarmHash's Fingerprint64, as in TensorFlow Lite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import litegpu
from litegpu.errors import MissingDependencyError, ModelError

TOKENS = {
    # Of the bytes 0, 1, 2, …, as two bindings of FarmHash's own code compute them.
    0: "11160318154034397263",
    1: "13718060045003475796",
    5: "13024315463276085577",
    20: "10220892904819695849",
    64: "17691551913807367243",
    100: "4395248839964844437",
    1000: "8032585197585415396",
    100000: "1119798005807822079",
}


@pytest.mark.parametrize("length", TOKENS)
def test_tokens_are_fingerprints_of_all_bytes(length: int, tmp_path: Path) -> None:
    pytest.importorskip("farmhash", reason="cityhash is not installed")
    content = (bytes(range(256)) * (length // 256 + 1))[:length]
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    assert litegpu.model_token(content) == TOKENS[length]
    assert litegpu.model_token(path) == litegpu.model_token(str(path)) == TOKENS[length]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pytest.importorskip("farmhash", reason="cityhash is not installed")
    with pytest.raises(ModelError, match=r"The model file '.*none.tflite' cannot be read: No such"):
        litegpu.model_token(tmp_path / "none.tflite")


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "farmhash", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[tools\]'"):
        litegpu.model_token(b"")
