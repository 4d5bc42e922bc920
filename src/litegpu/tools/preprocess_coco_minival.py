"""`litegpu preprocess_coco_minival`: prepares COCO's pictures and instances for the evaluation."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from litegpu.errors import FileError
from litegpu.tools.console import progress
from litegpu.tools.evaluation.ground_truth import TruePicture, as_proto, coco_pictures
from litegpu.tools.evaluation.pictures import needed, read_lines
from litegpu.tools.files import cannot_write, write_bytes
from litegpu.tools.flags import Flag, whole
from litegpu.tools.lines import warn

ARGUMENTS: dict[str, str] = {}
IMAGES = Flag("images_folder", str, "", "folder with COCO's validation pictures", metavar="FOLDER")
INSTANCES = Flag(
    "instances_file", str, "", "COCO's JSON, such as instances_val2014.json", metavar="FILE"
)
OUTPUT = Flag(
    *("output_folder", str, ""),
    "folder to create: images, and ground_truth.pb",
    metavar="FOLDER",
)
FLAGS = (
    IMAGES,
    INSTANCES,
    OUTPUT,
    Flag(
        *("allowlist_file", str, ""),
        "text file with the numbers of the pictures to use, one per line (default: all)",
        metavar="FILE",
    ),
    Flag(
        "num_images", whole, 0, "use only this many pictures, those with the lowest numbers; 0: all"
    ),
)
EXAMPLES = (
    "litegpu preprocess_coco_minival --images_folder=val2014 \\\n"
    "    --instances_file=instances_val2014.json --output_folder=minival \\\n"
    "    --allowlist_file=mscoco_minival_ids.txt",
)
NOTES = (
    "Pictures without annotations and boxes that exceed their picture are skipped. Give "
    "ground_truth.pb to coco_object_detection as --ground_truth_proto; COCO's own JSON works as "
    "well.",
)


def main(args: argparse.Namespace) -> int:
    """Copy the pictures, then write the proto; raise FileError if a file is missing."""
    folder, instances = Path(needed(args, IMAGES)), needed(args, INSTANCES)
    output = Path(needed(args, OUTPUT))
    pictures = _chosen(args, instances)
    paths = [folder / each.name for each in pictures]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise FileError(
            f"{len(missing)} of {len(paths)} pictures are not in '{folder}', such as "
            f"'{missing[0].name}'. Give --{IMAGES.name} the pictures of these instances."
        )
    try:
        (output / "images").mkdir(parents=True, exist_ok=True)
        for path in progress(paths, "pictures"):
            shutil.copy2(path, output / "images")
    except OSError as error:
        raise cannot_write(OUTPUT.name, str(output), error) from error
    write_bytes(OUTPUT.name, str(output / "ground_truth.pb"), as_proto(pictures))
    return 0


def _chosen(args: argparse.Namespace, instances: str) -> Sequence[TruePicture]:
    """Return the first allowed pictures with annotations, in the order of their ids."""
    allowed = _allowed(args.allowlist_file)
    try:
        data = json.loads(Path(instances).read_bytes())
        pictures = coco_pictures(data, allowed)
        annotated = {int(each["image_id"]) for each in data["annotations"]}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        raise FileError(
            f"The instances '{instances}' cannot be read: {getattr(error, 'strerror', None) or why}"
            f". Give --{INSTANCES.name} COCO's JSON."
        ) from error
    found = [each for each in pictures if each.image_id in annotated]
    if args.num_images < 0:
        warn(f"--num_images is {args.num_images}, hence outputting all annotated images.")
    elif args.num_images > len(found):
        warn(
            f"--num_images ({args.num_images}) is larger than the number of annotated images "
            f"({len(found)})."
        )
    elif args.num_images:
        chosen = sorted(each.image_id for each in found)[: args.num_images]
        return [each for each in found if each.image_id in chosen]
    return found


def _allowed(path: str) -> set[int] | None:
    if not path:
        return None
    numbers = [line.strip() for line in read_lines(path, "allowlist")]
    for number in numbers:
        if number and not number.isdecimal():
            raise FileError(
                f"The allowlist '{path}' has the line '{number}', which is not a picture's number. "
                "Give one number a line."
            )
    return {int(number) for number in numbers if number}
