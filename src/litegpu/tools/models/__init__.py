"""Finds models by path, zoo name, or a well-known name that may require a download."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from litegpu import config, files, zoo
from litegpu.errors import DownloadError, ModelError, OptionsError, did_you_mean
from litegpu.tools.console import note
from litegpu.tools.models.downloads import Asset, fetch

MEDIAPIPE = "https://storage.googleapis.com/mediapipe-assets/"
TENSORFLOW = "https://storage.googleapis.com/download.tensorflow.org/"


@dataclass(frozen=True)
class KnownModel:
    """A trained model that can be downloaded.

    `local_names` are file stems of equivalent models. `stand_in` is the zoo model of the same
    architecture with random weights.
    """

    url: str
    sha256: str
    local_names: tuple[str, ...] = ()
    stand_in: str = ""


KNOWN = {
    "deeplabv3_257_mv_gpu": KnownModel(
        TENSORFLOW + "models/tflite/gpu/deeplabv3_257_mv_gpu.tflite",
        "68a539782c2c6a72f8aac3724600124a85ed977162b44e84cbae5db717c933c6",
        stand_in="zoo:deeplab_v3_257",
    ),
    "mobilenet_v2_1.0_224": KnownModel(
        MEDIAPIPE + "mobilenet_v2_1.0_224_without_metadata.tflite?generation=1665988408360823",
        "9f3bc29e38e90842a852bfed957dbf5e36f2d97a91dd17736b1e5c0aca8d3303",
        local_names=("mobilenet_v2_1.0_224_float32",),
        stand_in="zoo:mobilenet_v2_1.0_224",
    ),
    "face_detection_short_range": KnownModel(
        MEDIAPIPE + "face_detection_short_range.tflite?generation=1661875748538815",
        "3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633",
        local_names=("face_detection_short_range_float16",),
    ),
    "face_landmark": KnownModel(
        MEDIAPIPE + "models/face_landmark.tflite?generation=1782183345452003",
        "2efcb4f4de43c7614b80a3cc3e8a37354b3b3b40f75cce20f6f38f0f25d65493",
    ),
    "hand_recrop": KnownModel(
        MEDIAPIPE + "hand_recrop.tflite?generation=1661875770633070",
        "67d996ce96f9d36fe17d2693022c6da93168026ab2f028f9e2365398d8ac7d5d",
    ),
    "palm_detection_lite": KnownModel(
        MEDIAPIPE + "palm_detection_lite.tflite?generation=1661875885885770",
        "e9a4aaddf90dda56a87235303cf00e4c2d3fb28725f68fd88772997dac905c18",
        local_names=("palm_detection_lite_float16",),
    ),
    "pose_landmark_lite": KnownModel(
        MEDIAPIPE + "pose_landmark_lite.tflite?generation=1661875901231143",
        "f17bfbecadb61c3be1baa8b8d851cc6619c870a87167b32848ad20db306b9d61",
        local_names=("pose_landmark_lite_float16",),
    ),
}


@dataclass(frozen=True)
class FoundModel:
    """A model's bytes and their source."""

    name: str
    content: bytes
    source: str

    @property
    def has_random_weights(self) -> bool:
        """Whether the model is a zoo model, or a file of one, with random weights."""
        return zoo.has_random_weights(self.content)


RANDOM_WEIGHTS = "The weights are random: times are realistic, but results have no meaning."
"""A note that tools print for models with random weights."""


def model_folders() -> list[Path]:
    """Return the folder in LITEGPU_MODELS, if it is set.

    No other folder is searched, because files near the current folder may belong to other users.
    """
    named = config.text("LITEGPU_MODELS")
    if not named:
        return []
    if not Path(named).is_dir():
        raise OptionsError(
            f"LITEGPU_MODELS is '{named}', which is not a folder. "
            "Set it to a folder with model files, or unset it."
        )
    return [Path(named)]


def find_model(name: str) -> FoundModel:
    """Return the model `name`: a path, `zoo:NAME`, or a name with or without `.tflite`.

    A path may be that of a bundle with one model, or of a member: `bundle.task:member.tflite`.

    The function searches for a name in `model_folders()`, among earlier downloads, and at the
    model's official URL. If the URL is not reachable, the function returns a model of the same
    architecture with random weights.

    Raises:
        ModelError: the model does not exist, or the path is a bundle with several models. The
            message lists the searched locations or the names of the models.
        DownloadError: the model is known, but could neither be downloaded nor replaced.
    """
    if zoo.is_zoo_name(name):
        return FoundModel(name, zoo.load(name), name)
    path, member = files.located(name)
    if os.path.isfile(
        path
    ):  # unlike Path.is_file, also works for names that are too long for a file
        stem = Path(member.rpartition(":")[2] or path).stem
        return FoundModel(stem, _read(name), name)
    stem = name.removesuffix(".tflite")
    local = _local_file(stem)
    if local:
        return FoundModel(stem, _read(str(local)), str(local))
    if found := _in_folders(name):
        return find_model(found)
    if stem not in KNOWN:
        raise ModelError(_not_found(name))
    return _fetch(stem, KNOWN[stem])


def find_container(name: str) -> files.Container | None:
    """Return the bundle at this path or in `model_folders()`; None if it is not a bundle.

    Raises:
        ModelError: the bundle is damaged, or cannot be read.
    """
    if zoo.is_zoo_name(name):
        return None
    path = name if os.path.isfile(name) else _in_folders(name)
    if not path or not os.path.isfile(path):
        return None
    with _readable(path):
        return files.open_container(path)


def _read(path: str) -> bytes:
    with _readable(path):
        content = files.read_model(path)
    if not content:
        raise ModelError(f"The model file '{path}' is empty. Download or convert the model again.")
    return content


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"The model file '{path}' cannot be read: {error.strerror}. Check its permissions."
        ) from error


def _local_file(stem: str) -> Path | None:
    known = KNOWN.get(stem)
    stems = (stem, *known.local_names) if known else (stem,)
    for folder in model_folders():
        for candidate in stems:
            if os.path.isfile(folder / f"{candidate}.tflite"):
                return folder / f"{candidate}.tflite"
    return None


def _in_folders(name: str) -> str | None:
    """Return the path of a file in `model_folders()`, followed by the member in `name`."""
    found = (str(folder / name) for folder in model_folders())
    return next((each for each in found if os.path.isfile(files.located(each)[0])), None)


def _fetch(stem: str, known: KnownModel) -> FoundModel:
    try:
        found = fetch(Asset(f"{stem}.tflite", known.url, known.sha256))
    except DownloadError as error:
        if not known.stand_in:
            raise
        note(f"{error}\nUsing {known.stand_in} instead: same architecture, random weights.")
        return FoundModel(stem, zoo.load(known.stand_in), known.stand_in)
    return FoundModel(stem, found.content, found.source)


def _not_found(name: str) -> str:
    folders = model_folders()
    names = {path.stem for folder in folders for path in folder.glob("*.tflite")} | set(KNOWN)
    names |= {*zoo.names(), *(path.name for path in Path().glob("*.tflite"))}
    names |= {
        path.name
        for folder in (Path(), *folders)
        for suffix in files.CONTAINER_SUFFIXES
        for path in folder.glob(f"*{suffix}")
    }
    positions = ", ".join(["the current folder", *map(str, folders)])
    return (
        f"No model '{name}' in {positions}, nor a known URL to download it from. "
        f"Give the path of a model file, a zoo model (zoo:NAME) or a known name."
        f"{did_you_mean(name, sorted(names))}"
    )
