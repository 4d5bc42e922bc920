"""Lookup of models: paths, folders, earlier downloads, the network, the zoo."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from containers import bundle
from litegpu import zoo
from litegpu.errors import DownloadError, ModelError, OptionsError
from litegpu.tools.models import (
    KNOWN,
    KnownModel,
    downloads,
    find_container,
    find_model,
    model_folders,
)
from litegpu.zoo import registry

CONTENT = b"a model"


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no folder of models, and a zoo that says what it was asked."""
    monkeypatch.delenv("LITEGPU_MODELS", raising=False)
    monkeypatch.setattr(downloads, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("litegpu.zoo.load", lambda name: f"written {name}".encode())
    work = tmp_path / "somewhere"
    work.mkdir()
    monkeypatch.chdir(work)


def known_at(folder: Path, monkeypatch: pytest.MonkeyPatch, stand_in: str = "") -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    entry = KnownModel(folder.as_uri(), digest, ("famous_float32",), stand_in)
    monkeypatch.setitem(KNOWN, "famous", entry)


def test_an_empty_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.tflite"
    path.touch()
    with pytest.raises(ModelError, match=r"mine.tflite' is empty\. Download or convert"):
        find_model(str(path))


def test_a_path_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.tflite"
    path.write_bytes(CONTENT)
    found = find_model(str(path))
    assert (found.name, found.content, found.source) == ("mine", CONTENT, str(path))


def test_a_zoo_name_goes_to_the_zoo() -> None:
    found = find_model("zoo:mobilenet_v1_1.0_224")
    assert found.content == b"written zoo:mobilenet_v1_1.0_224"


@pytest.mark.parametrize("name", ["mine", "mine.tflite"])
def test_a_name_is_found_in_the_named_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.tflite").write_bytes(CONTENT)
    monkeypatch.setenv("LITEGPU_MODELS", str(tmp_path))
    assert find_model(name).source == str(tmp_path / "mine.tflite")


def test_a_bundle_is_found_in_the_named_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pair.task"
    content = b"\0\0\0\0TFL3"
    path.write_bytes(bundle({"a.tflite": content, "b.tflite": content}))
    monkeypatch.setenv("LITEGPU_MODELS", str(tmp_path))
    found = find_model("pair.task:b.tflite")
    assert (found.name, found.content, found.source) == ("b", content, f"{path}:b.tflite")
    container = find_container("pair.task")
    assert container is not None and container.path == str(path)
    assert find_container("pear.task") is None
    with pytest.raises(ModelError, match=r"No model 'pear.task' .* Did you mean 'pair.task'"):
        find_model("pear.task")


def test_no_folder_is_looked_at_that_was_not_named(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "models"  # beside the current folder
    folder.mkdir(parents=True)
    (folder / "mine.tflite").write_bytes(CONTENT)
    assert model_folders() == []
    with pytest.raises(ModelError, match="No model 'mine' in the current folder, nor"):
        find_model("mine")


def test_a_named_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared" / "models").mkdir(parents=True)
    monkeypatch.setenv("LITEGPU_MODELS", str(tmp_path))
    assert model_folders() == [tmp_path]


def test_a_named_folder_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITEGPU_MODELS", "/no/such/folder")
    with pytest.raises(OptionsError, match="LITEGPU_MODELS is '/no/such/folder', which is not"):
        find_model("anything")


def test_another_local_name_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known_at(tmp_path / "absent", monkeypatch)
    (tmp_path / "famous_float32.tflite").write_bytes(CONTENT)
    monkeypatch.setenv("LITEGPU_MODELS", str(tmp_path))
    assert find_model("famous").content == CONTENT


def test_a_known_model_is_fetched_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = tmp_path / "official"
    official.write_bytes(CONTENT)
    known_at(official, monkeypatch)
    assert find_model("famous").source == str(tmp_path / "cache" / "famous.tflite")
    official.unlink()
    assert find_model("famous").content == CONTENT


def test_an_unreachable_model_is_replaced_by_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known_at(tmp_path / "absent", monkeypatch, stand_in="zoo:famous")
    found = find_model("famous")
    assert found.source == "zoo:famous"
    assert found.content == b"written zoo:famous"
    assert "Using zoo:famous instead: same architecture, random weights." in capsys.readouterr().err


def test_an_unreachable_model_without_stand_in_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_at(tmp_path / "absent", monkeypatch)
    with pytest.raises(DownloadError, match=r"famous\.tflite could not be downloaded from file:"):
        find_model("famous")


def test_an_unknown_name_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ModelError, match="No model 'deeplabv3_257_gpu' in the current folder") as e:
        find_model("deeplabv3_257_gpu")
    assert "Did you mean 'deeplabv3_257_mv_gpu'?" in str(e.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("zoo:mobilnet_v1", "zoo:mobilenet_v1_1.0_224"),
        ("zoo:mobilenet", "zoo:mobilenet_v1_1.0_224"),
        ("zoo:resnet", "zoo:resnet50"),
        ("resnet50", "zoo:resnet50"),
        ("mobilnet_v2", "mobilenet_v2_1.0_224"),
        ("modle.tflite", "model.tflite"),
    ],
)
def test_the_nearest_name_is_suggested(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litegpu.zoo.load", registry.load)
    (Path() / "model.tflite").touch()
    with pytest.raises((ModelError, OptionsError), match=f"Did you mean '{meant}'"):
        find_model(name)


def test_known_models_name_a_place_and_a_digest() -> None:
    for model in KNOWN.values():
        assert model.url.startswith("https://storage.googleapis.com/")
        assert len(bytes.fromhex(model.sha256)) == 32
        assert not model.stand_in or model.stand_in in zoo.names()
