"""`litegpu run` on a folder of pictures or a video: processes and draws each picture."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from litegpu.errors import FileError, OptionsError
from litegpu.pictures.images import open_picture
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.batch.folder import PICTURES
from litegpu.tools.console import note, print_table, progress
from litegpu.tools.delegation import make_delegate, print_report, with_delegate
from litegpu.tools.drawing.finding import Finding
from litegpu.tools.drawing.saving import check_folder, check_video, save_picture
from litegpu.tools.drawing.video import Film, FilmWriter, is_video
from litegpu.tools.drawing.video import Frame as FilmFrame
from litegpu.tools.engines.ahead import ahead
from litegpu.tools.files import prints_json, replacing, try_to_write, write_json
from litegpu.tools.labels import read_labels
from litegpu.tools.models import find_model
from litegpu.tools.reports.page import prepare_report, write_report
from litegpu.tools.reports.sections import Picture
from litegpu.tools.results import print_meaning
from litegpu.tools.run.page import MAX_EXAMPLES, many_page, shown_picture
from litegpu.tools.run.pipeline import Clock, spread
from litegpu.tools.signatures import of_signature
from litegpu.tools.viewer import Shown, Viewer
from litegpu.wording import counted

if TYPE_CHECKING:
    from PIL import Image

_AHEAD = 4
"""Maximum number of pictures that are decoded in advance."""
_THREADS = 2
"""Number of threads that decode, and of threads that draw, the pictures of a folder."""
_ONE_PICTURE = ("num_runs", "max_secs")
"""Flags that do not apply to many pictures."""


def takes(image: str | None) -> bool:
    """Return whether `--image` names a folder or a video."""
    return image is not None and (os.path.isdir(image) or is_video(image))


def main(args: argparse.Namespace) -> int:
    """Process all pictures, and draw them with --output; return 1 if nothing ran on the GPU."""
    for name in (flag for flag in args.given if flag in _ONE_PICTURE):
        raise OptionsError(
            f"--{name}={getattr(args, name)}: only a single picture is timed. Leave the flag out, "
            "or give one picture as --image."
        )
    try_to_write("json", args.json)
    prepare_report(args.report)
    is_folder = os.path.isdir(args.image)
    if is_folder:
        outputs = check_folder(args, _pictures_in(args.image))
        run = Run(args)
        content = run.folder(outputs)
    else:
        check_video(args)
        with closing(Film(args.image, args.strict)) as film:
            run = Run(args)
            content = run.video(film)
    report = run.delegate.report
    found = {
        "model": run.model.source,
        "random_weights": run.model.has_random_weights,
        "report": report.to_dict() if report else None,
        "task": run.viewer.to_dict(),
        **content,
        "seconds": run.clock.wall_s,
        "stages": [
            {"name": each.name, "busy_seconds": each.busy_s, "rate": each.rate}
            for each in run.clock.stages()
        ],
    }
    if run.shown:
        print_meaning(run.model)
    write_json("json", args.json, found)
    if args.report:
        examples = sorted(run.examples, key=lambda each: each.title) if is_folder else run.examples
        page = many_page(run.model, report, args.image, run.clock, examples)
        write_report(args.report, page)
    return 0 if report and report.delegated_nodes else 1


class Answer(NamedTuple):
    """The result of a picture, as a short text and as data for JSON."""

    brief: str
    found: dict[str, Any]


class Run:
    """A model with the delegate, which processes pictures sequentially."""

    def __init__(self, args: argparse.Namespace) -> None:
        named = read_labels(args.labels)
        self.model = find_model(args.model)
        self.delegate = make_delegate(args)
        note(f"model: {self.model.source}")
        self.shown = not prints_json(args)
        self.viewer = Viewer(self.model.content, args, named)
        self.clock = Clock({})
        self.examples: list[Picture] = []
        self._step = 1
        self._args = args
        target = with_delegate(self.model.content, self.delegate, args.num_threads)
        self._target = of_signature("signature", args.signature, target)
        if self.shown:
            print_report(self.delegate)

    def prepared(self, picture: Image.Image) -> Shown | None:
        """Convert a picture to input values; return None while the model's task is unknown."""
        return self.viewer.show(picture) if self.viewer.task else None

    def answer(self, picture: Image.Image, shown: Shown | None) -> Finding:
        """Return the result of a picture; the first picture determines the model's task."""
        if self.viewer.task is None:
            self.viewer.begin(self._target, picture, needed=True)
        shown = shown or self.viewer.show(picture)
        with self.clock.timing("infer"):
            runtime.set_inputs(self._target, shown.values)
            runtime.invoke(self._target)
            finding = self.viewer.read(runtime.outputs(self._target), shown.frame)
        assert finding is not None  # the task is known
        return finding

    def folder(self, outputs: dict[str, str | None]) -> dict[str, Any]:
        """Process pictures by path; with --output, draw each picture.

        Raises:
            FileError: no picture can be read or, with --strict, a picture cannot be read.
        """
        self.clock = Clock({"decode": _THREADS, "infer": 1, "draw": _THREADS})
        start, skipped = time.perf_counter(), []
        shown = dict.fromkeys(list(outputs)[:MAX_EXAMPLES])

        def load(path: str) -> tuple[str, Image.Image | None, Shown | None, str]:
            try:
                with self.clock.timing("decode"):
                    picture = open_picture(path)
                    return path, picture, self.prepared(picture), ""
            except FileError as error:
                if self._args.strict:
                    raise
                return path, None, None, str(error)

        def answered() -> Iterator[tuple[str, Image.Image, Finding]]:
            for path, picture, inputs, why in spread(load, outputs, _THREADS):
                if picture is None:
                    skipped.append({"file": path, "why": why})
                    note(f"skipped: {why}")
                else:
                    yield path, picture, self.answer(picture, inputs)

        def draw(item: tuple[str, Image.Image, Finding]) -> Answer:
            path, picture, finding = item
            example = self._args.report is not None and path in shown
            if outputs[path] or example:
                with self.clock.timing("draw"):
                    drawing = finding.draw(picture)
                    if output := outputs[path]:
                        save_picture("output", output, drawing)
                if example:
                    self.examples.append(shown_picture(drawing, Path(path).name, finding.brief()))
            return self._recorded(finding, file=path, output=outputs[path])

        drawn = spread(draw, answered(), _THREADS)
        done = list(progress(drawn, "pictures", len(outputs)))
        self.clock.wall_s = time.perf_counter() - start
        if not done:
            raise FileError(
                f"--image={self._args.image}: none of its {counted(len(outputs), 'picture')} can "
                f"be read. The first: {skipped[0]['why']}"
            )
        if self.shown:
            self._print_folder(done, len(skipped))
        return {
            "pictures": [each.found for each in done],
            "skipped": skipped,
        }

    def video(self, film: Film) -> dict[str, Any]:
        """Process the frames of a video, and write the drawings to another video.

        After Ctrl-C, the method saves the processed frames, and raises KeyboardInterrupt.

        Raises:
            FileError: the video cannot be read, or the output cannot be written.
        """
        args = self._args
        self.clock = Clock({"decode": 1, "infer": 1, "draw": 1})
        start, count, frames, interrupted = time.perf_counter(), 0, [], False
        self._step = max(film.count // MAX_EXAMPLES, 1)
        with writing(args.output, film) as writer:
            try:
                for each in progress(self._drawn(film, writer), "frames", film.count):
                    count += 1
                    if args.json is not None:  # there may be many
                        frames.append(each.found)
            except KeyboardInterrupt:
                interrupted = True
        self.clock.wall_s = time.perf_counter() - start
        if film.damaged:
            note(f"{counted(film.damaged, 'packet')} of {args.image} could not be decoded")
        if interrupted:
            frame_count = writer.frames if writer else 0
            note(
                f"stopped; {args.output} has {counted(frame_count, 'frame')}"
                if frame_count
                else "stopped"
            )
            raise KeyboardInterrupt
        if self.shown:
            self.clock.print("frame", count)
        if args.output is not None:
            note(f"output: {args.output}")
        return {
            "video": args.image,
            "output": args.output,
            "damaged": film.damaged,
            "frames": frames,
        }

    def _drawn(self, film: Film, writer: FilmWriter | None) -> Iterator[Answer]:
        """Yield the result of each frame, after the drawing has been written."""

        def decoded() -> Iterator[tuple[FilmFrame, Shown | None]]:
            frames = film.frames()
            while True:
                try:
                    with self.clock.timing("decode"):
                        frame = next(frames)
                        inputs = self.prepared(frame.picture)
                except StopIteration:
                    return
                yield frame, inputs

        def draw(item: tuple[FilmFrame, Finding]) -> Answer:
            frame, finding = item
            example = self._args.report is not None and frame.number % self._step == 0
            if writer or example:
                with self.clock.timing("draw"):
                    drawing = finding.draw(frame.picture)
                    if writer:
                        writer.add(drawing, frame.ticks)
                if example and len(self.examples) < MAX_EXAMPLES:
                    title = f"frame {frame.number}, {frame.seconds:.2f} s"
                    self.examples.append(shown_picture(drawing, title, finding.brief()))
            return self._recorded(finding, frame=frame.number, seconds=frame.seconds)

        with ahead(decoded(), _AHEAD) as frames:
            # One thread draws: frames are written in order.
            found = ((frame, self.answer(frame.picture, inputs)) for frame, inputs in frames)
            yield from spread(draw, found, 1)

    def _recorded(self, finding: Finding, **about: Any) -> Answer:
        """Return the Answer of a result, with the data (which may be large) only for --json."""
        found = {"found": finding.to_dict()} if self._args.json is not None else {}
        return Answer(finding.brief(), {**about, **found})

    def _print_folder(self, done: list[Answer], skipped: int) -> None:
        drawn = self._args.output is not None
        print_table(
            ("picture", "found", *(("drawing",) if drawn else ())),
            [
                (
                    *(Path(each.found["file"]).name, each.brief),
                    *((each.found["output"],) if drawn else ()),
                )
                for each in done
            ],
        )
        self.clock.print("picture", len(done))
        if skipped:
            print(f"skipped: {counted(skipped, 'unreadable picture')}")


@contextmanager
def writing(output: str | None, film: Film) -> Iterator[FilmWriter | None]:
    """Yield a function that writes the frames of a video; None without --output.

    The output file appears after all frames have been written. Without frames, no file is written.

    Raises:
        FileError: the output cannot be written.
    """
    if output is None:
        yield None
        return
    with replacing("output", output) as part:
        writer = FilmWriter(part, film.rate, film.tick)
        try:
            yield writer
        finally:
            writer.close()
        if not writer.frames:
            part.unlink(missing_ok=True)


def _pictures_in(folder: str) -> list[str]:
    """Return the paths of a folder's pictures, by their suffixes, in order.

    Raises:
        FileError: there are no pictures, or the folder cannot be listed.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise FileError(
            f"--image={folder}: the folder cannot be listed: {error.strerror}."
        ) from error
    found = [
        os.path.join(folder, name)
        for name in names
        if not name.startswith(".") and Path(name).suffix.lower() in PICTURES
    ]
    if not found:
        raise FileError(
            f"--image={folder}: the folder has no pictures. "
            "Give one with files such as .jpg or .png."
        )
    return found
