"""`litegpu run` on folders of pictures and on videos."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import FileError
from litegpu.tools import cli
from litegpu.tools.drawing.video import Film, FilmWriter, is_video
from litegpu.tools.run.many import writing
from litegpu.tools.run.pipeline import Clock, spread
from places import SOURCE
from seeing_models import clip, detector, finder, saying, spot

BOXES = [[0.25, 0.125, 0.5, 0.375], [0.5, 0.5, 1.0, 0.75]]
SCORES = [[0.0, 0.9, 0.0], [0.0, 0.0, 0.7]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a detector, and a folder with two pictures and other files."""
    (tmp_path / "model.tflite").write_bytes(detector(BOXES, SCORES))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.new("RGB", (200, 100), "grey").save(pictures / "wide.png")
    Image.new("RGB", (100, 200), "grey").save(pictures / "tall.jpg")
    (pictures / "notes.txt").write_text("no picture")
    (pictures / ".hidden.png").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*flags: str, image: str = "pictures") -> int:
    return cli.main(["run", "model.tflite", f"--image={image}", *flags])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


# Folders


def test_each_picture_is_answered_and_drawn(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pictures" / "bad.jpg").write_text("no picture")
    assert run("--output=drawn", "--json=found.json") == 0
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines()]
    drawing = str(Path("drawn") / "wide.png")
    assert ["wide.png", "2", "objects:", "class", "0,", "class", "1", drawing] in rows
    assert [row[:3] for row in rows if row[:1] in (["decode"], ["infer"], ["draw"])] == [
        ["decode", "2", "2"],
        ["infer", "1", "2"],
        ["draw", "2", "2"],
    ]
    assert "2 pictures in " in captured.out
    assert "skipped: 1 unreadable picture" in captured.out
    assert f"skipped: The picture '{Path('pictures') / 'bad.jpg'}' cannot be" in captured.err
    assert Image.open("drawn/wide.png").size == (200, 100)
    assert Image.open("drawn/tall.png").size == (100, 200)
    found = json.loads(Path("found.json").read_text())
    assert [Path(each["file"]).name for each in found["pictures"]] == ["tall.jpg", "wide.png"]
    tall, wide = (each["found"]["objects"][0]["box"] for each in found["pictures"])
    assert tall == pytest.approx([12.5, 50, 37.5, 100], abs=1e-3)
    assert wide == pytest.approx([25, 25, 75, 50], abs=1e-3)
    assert [Path(each["file"]).name for each in found["skipped"]] == ["bad.jpg"]
    assert found["task"]["name"] == "detect"
    assert [each["name"] for each in found["stages"]] == ["decode", "infer", "draw"]


@pytest.mark.parametrize("image", ["pictures", "clip.mp4"])
def test_a_page_shows_some_drawings(image: str, folder: Path) -> None:
    if image == "clip.mp4":
        av()
        clip(image)
    assert run("--report=page.html", image=image) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<h2>Drawings" in page
    assert "<h2>Stages" in page
    assert ("tall.jpg" in page) is (image == "pictures")
    assert ("frame 5, 0.50 s" in page) is (image == "clip.mp4")
    assert page.count("data:image/jpeg") == (2 if image == "pictures" else 6)


def test_without_an_output_there_is_only_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert "tall.jpg   2 objects: class 0, class 1\n" in capsys.readouterr().out
    assert sorted(each.name for each in folder.iterdir()) == ["model.tflite", "pictures"]


def test_names_that_differ_by_their_suffix_stay_apart(folder: Path) -> None:
    Image.new("RGB", (20, 20)).save("pictures/wide.bmp")
    assert run("--output=drawn") == 0
    names = sorted(each.name for each in (folder / "drawn").iterdir())
    assert names == ["tall.png", "wide.bmp.png", "wide.png.png"]


def test_strictly_one_unreadable_picture_ends_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pictures" / "bad.jpg").write_text("no picture")
    assert run("--strict", "--json=found.json") == 1
    assert "bad.jpg' cannot be read: cannot identify image file" in said(capsys)
    assert not Path("found.json").exists()


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--output=pictures"], 2, "--output=pictures: this is the file of --image"),
        (["--output=model.tflite"], 1, "--output=model.tflite: the drawings cannot be written"),
        (["--output=model.tflite/x"], 1, "Name a folder that is writable or can be created."),
        (["--num_runs=3"], 2, "--num_runs=3: only a single picture is timed."),
        (["--max_secs=3"], 2, "--max_secs=3.0: only a single picture is timed."),
        (["--region=0,0,150,90"], 2, "this is no part of a picture of 100×200 pixels"),
    ],
)
def test_errors_of_folders_name_the_value(
    flags: list[str], status: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == status
    assert message in said(capsys)
    assert sorted(each.name for each in folder.iterdir()) == ["model.tflite", "pictures"]


def test_a_folder_without_readable_pictures_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    assert run(image="empty") == 1
    assert "--image=empty: the folder has no pictures. Give one with files" in said(capsys)
    (folder / "empty" / "bad.png").touch()
    assert run(image="empty") == 1
    assert "--image=empty: none of its 1 picture can be read. The first: The" in said(capsys)


def test_a_folder_that_cannot_be_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("litegpu.tools.run.many.os.listdir", refuse)
    assert run() == 1
    assert "--image=pictures: the folder cannot be listed: Permission denied." in said(capsys)


def test_what_an_unclear_model_is_for_must_be_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.tflite").write_bytes(saying({"few": [[0.25, 0.75]]}))
    assert run() == 2
    assert "Choose a task with --task=" in said(capsys)
    assert run("--task=classify") == 0
    assert "class 1 0.75" in capsys.readouterr().out


def test_names_are_sought_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are read from a file."""
    (folder / "model.tflite").write_bytes(saying({"scores": np.linspace(0, 1, 1001)[None]}))
    queried: list[int] = []

    def ask(_: int) -> list[str]:
        queried.append(1)
        return []

    monkeypatch.setattr("litegpu.tools.labels.imagenet_labels", ask)
    assert run() == 0
    assert "wide.png   class 1000 1.00" in capsys.readouterr().out
    assert queried == [1]


# Videos


def av() -> Any:
    return pytest.importorskip("av", reason="PyAV is not installed: pip install 'litegpu[video]'")


@pytest.fixture
def film(folder: Path) -> Path:
    """A current folder with a model that finds lights, and a clip of one."""
    av()
    (folder / "model.tflite").write_bytes(finder())
    clip("clip.mp4")
    return folder


LIGHT = ("--input_mean=0", "--input_std=255", "--min_score=0", "--fit=stretch")


def frames_of(path: str) -> list[Any]:
    with av().open(path) as container:
        return list(container.decode(video=0))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm", ".avi"])
def test_a_video_is_drawn_frame_by_frame(
    suffix: str, film: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = f"drawn{suffix}"
    assert run(*LIGHT, f"--output={output}", "--json=found.json", image="clip.mp4") == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert [row[:3] for row in rows if row[:1] in (["decode"], ["infer"], ["draw"])] == [
        ["decode", "1", "6"],
        ["infer", "1", "6"],
        ["draw", "1", "6"],
    ]
    assert "6 frames in " in text
    drawn = frames_of(output)
    assert [(each.width, each.height) for each in drawn] == [(160, 100)] * 6
    assert [float(each.time) for each in drawn] == pytest.approx(
        [n / 10 for n in range(6)], abs=0.01
    )
    found = json.loads(Path("found.json").read_text())
    assert [each["frame"] for each in found["frames"]] == list(range(6))
    assert found["frames"][5]["seconds"] == pytest.approx(0.5)
    for number, each in enumerate(found["frames"]):
        point = each["found"]["figures"][0]["points"][0]
        x, y = spot(number)
        assert (point["x"], point["y"]) == (pytest.approx(x, abs=22), pytest.approx(y, abs=14))
    changed = np.asarray(drawn[3].to_image()).max(2) > 100
    assert changed.any(), "the light and its point"


@pytest.mark.parametrize("suffix", [".avi", ".mp4"])
def test_fine_ticks_are_written_as_they_can_be(suffix: str, film: Path) -> None:
    """Cameras count in 1/90000 of a second; a pause between frames stays."""
    writer = FilmWriter(Path(f"fine{suffix}"), Fraction(10), Fraction(1, 90000))
    for ticks in (0, 9000, 45000):
        writer.add(Image.new("RGB", (64, 48), "grey"), ticks)
    writer.close()
    drawn = frames_of(f"fine{suffix}")
    assert [float(each.time) for each in drawn] == pytest.approx([0, 0.1, 0.5], abs=0.01)
    assert os.path.getsize(f"fine{suffix}") < 20_000


def test_sizes_that_are_odd_become_even(film: Path) -> None:
    clip("odd.mkv", size=(161, 99))
    assert (frames_of("odd.mkv")[0].width, frames_of("odd.mkv")[0].height) == (162, 100)
    assert run(*LIGHT, "--output=drawn.mp4", image="odd.mkv") == 0
    assert len(frames_of("drawn.mp4")) == 6


def test_a_video_without_an_output_is_only_answered(
    film: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*LIGHT, "--json", image="clip.mp4") == 0
    assert len(json.loads(capsys.readouterr().out)["frames"]) == 6


@pytest.mark.parametrize(("turn", "size"), [(0, (40, 20)), (-90, (20, 40)), (180, (40, 20))])
def test_turned_videos_are_shown_upright(turn: int, size: tuple[int, int], film: Path) -> None:
    read = Film("clip.mp4", strict=False)
    picture = Image.new("RGB", (40, 20))
    picture.putpixel((0, 0), (255, 255, 255))
    shown = read._upright(SimpleNamespace(to_image=lambda: picture, rotation=turn))
    read.close()
    assert shown.size == size
    corner = {0: (0, 0), -90: (19, 0), 180: (39, 19)}[turn]
    assert shown.getpixel(corner) == (255, 255, 255), "clockwise by 90 degrees for -90"


def test_pixels_that_are_not_square_are_stretched(film: Path) -> None:
    library = av()
    with library.open("wide.mkv", "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)
        frame = library.VideoFrame.from_image(Image.new("RGB", (64, 48), "grey"))
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    read = Film("wide.mkv", strict=False)
    sizes = [each.picture.size for each in read.frames()]
    read.close()
    assert sizes == [(128, 48)]


def test_a_damaged_video_is_drawn_as_far_as_it_goes(
    film: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage("clip.mp4")
    assert run(*LIGHT, "--output=drawn.mp4", image="clip.mp4") == 0
    assert "of clip.mp4 could not be decoded" in said(capsys)
    assert 0 < len(frames_of("drawn.mp4")) < 60
    os.unlink("drawn.mp4")
    assert run(*LIGHT, "--output=drawn.mp4", "--strict", image="clip.mp4") == 1
    assert "The video 'clip.mp4' cannot be read: the data after " in said(capsys)
    assert not Path("drawn.mp4").exists()


def damage(path: str) -> None:
    """Overwrite packets in the middle of a longer clip."""
    clip(path, frames=60)
    content = bytearray(Path(path).read_bytes())
    at = content.index(b"mdat") + 2000
    content[at : at + 1500] = b"\xff" * 1500
    Path(path).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.mp4", b"no video", "The video 'text.mp4' cannot be read: Invalid data found"),
        ("empty.mkv", b"", "The video 'empty.mkv' cannot be read: "),
        ("absent.mp4", None, "The video 'absent.mp4' cannot be read: No such file or directory."),
    ],
)
def test_what_is_no_video_is_named(
    name: str, content: bytes | None, message: str, film: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    assert run("--output=drawn.mp4", image=name) == 1
    assert message in said(capsys)
    assert not Path("drawn.mp4").exists()


def test_what_cannot_be_read_is_told_before_the_work(
    film: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "litegpu.tools.run.many.find_model", lambda _: pytest.fail("work was begun")
    )
    Path("text.mp4").write_text("no video")
    (film / "empty").mkdir()
    for image in ("text.mp4", "empty"):
        assert run(image=image) == 1
        assert image in said(capsys)


def test_a_video_without_pictures_is_named(film: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = av()
    with library.open("sound.mp4", "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = library.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert run(image="sound.mp4") == 1
    assert "The video 'sound.mp4' cannot be read: the file has no pictures." in said(capsys)


def test_a_video_of_which_nothing_can_be_decoded(film: Path) -> None:
    read = Film("clip.mp4", strict=False)
    read._decoded = lambda: iter(())  # type: ignore[method-assign]
    with pytest.raises(FileError, match="no picture of the file can be decoded"):
        list(read.frames())
    read.close()


@pytest.mark.parametrize(
    ("output", "status", "message"),
    [
        ("drawn.png", 2, "--output=drawn.png: a video is drawn into .mp4, .mov, .mkv, .avi, .webm"),
        ("clip.mp4", 2, "--output=clip.mp4: this is the file of --image"),
        ("nowhere/x.mp4", 1, "--output=nowhere/x.mp4: the file cannot be written: No such file"),
    ],
)
def test_errors_of_videos_name_the_value(
    output: str, status: int, message: str, film: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("clip.mp4").read_bytes()
    assert run(f"--output={output}", image="clip.mp4") == status
    assert message in said(capsys)
    assert Path("clip.mp4").read_bytes() == before


def test_without_pyav_its_command_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert run(image="clip.mp4") == 1
    assert "Reading a video needs the Python package 'av'" in (text := said(capsys))
    assert "pip install 'litegpu[video]'" in text


def test_without_a_codec_other_kinds_are_named(film: Path) -> None:
    read = Film("clip.mp4", strict=False)
    try:
        library = av()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "codecs_available", {"gif"})
            with pytest.raises(FileError, match=r"A \.webm video takes one of the codecs libvpx"):
                FilmWriter(Path("x.webm"), read.rate, read.tick)
    finally:
        read.close()


def test_without_a_frame_the_old_file_stays(film: Path) -> None:
    Path("drawn.mp4").write_bytes(b"the last one")
    read = Film("clip.mp4", strict=False)
    with writing("drawn.mp4", read) as writer:
        assert writer is not None
    read.close()
    assert Path("drawn.mp4").read_bytes() == b"the last one"
    assert not [name for name in os.listdir() if ".part" in name]


def start(*flags: str, limit: int = 0) -> subprocess.Popen[str]:
    """Start the tool on clip.mp4 in a process of its own, which writes no larger files."""
    words = ["run", "model.tflite", "--image=clip.mp4", *LIGHT, *flags]
    program = f"from litegpu.tools import cli\nraise SystemExit(cli.main({words}))"
    if limit:
        sizes = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
        program = f"import resource\n{sizes}\n{program}"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_an_interrupt_leaves_a_video_that_can_be_played(film: Path) -> None:
    clip("clip.mp4", frames=2500)
    process = start("--output=drawn.mp4")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        ".part" in each.name and each.stat().st_size > 0 for each in film.iterdir()
    ):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "stopped; drawn.mp4 has " in error
    frame_count = len(frames_of("drawn.mp4"))
    assert 0 < frame_count < 2500
    assert f"drawn.mp4 has {frame_count} frames" in error
    assert not [name for name in os.listdir() if ".part" in name]


def test_a_full_disk_leaves_the_old_video(film: Path) -> None:
    """The limit on the size of files stands for a full disk."""
    pytest.importorskip("resource", reason="limits of processes are not on Windows")
    Path("drawn.mp4").write_bytes(b"the last one")
    process = start("--output=drawn.mp4", limit=600)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    assert "--output=drawn.mp4: the file cannot be written: " in error
    assert Path("drawn.mp4").read_bytes() == b"the last one"
    assert not [name for name in os.listdir() if ".part" in name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.mp4", True), ("A.MKV", True), ("a.mpeg", True), ("a.gif", False), ("a.png", False)],
)
def test_videos_are_known_by_their_names(name: str, expected: bool) -> None:
    assert is_video(name) is expected


# Stages


def test_values_come_in_order_from_several_threads() -> None:
    names: set[str] = set()

    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        names.add(threading.current_thread().name)
        return number * number

    assert list(spread(work, range(20), 3)) == [number * number for number in range(20)]
    assert 1 < len(names) <= 3


def test_items_are_taken_only_a_little_ahead() -> None:
    chosen: list[int] = []

    def items() -> Any:
        for number in range(100):
            chosen.append(number)
            yield number

    values = spread(str, items(), 2)
    assert next(values) == "0"
    assert len(chosen) <= 4
    values.close()  # type: ignore[attr-defined]
    assert len(chosen) <= 4


def test_what_a_thread_raises_is_raised() -> None:
    def fail(number: int) -> int:
        raise FileError(f"number {number}")

    with pytest.raises(FileError, match="number 0"):
        list(spread(fail, range(9), 2))


def test_stages_that_fail_do_not_count() -> None:
    clock = Clock({"decode": 2})
    with clock.timing("decode"):
        time.sleep(0.02)
    with pytest.raises(FileError), clock.timing("decode"):
        raise FileError("unreadable")
    (stage,) = clock.stages()
    assert (stage.name, stage.workers, stage.samples) == ("decode", 2, 1)
    assert stage.busy_s >= 0.02
