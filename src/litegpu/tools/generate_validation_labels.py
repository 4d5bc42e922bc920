"""`litegpu generate_validation_labels`: writes the labels of ImageNet's validation pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

from litegpu.errors import FileError, missing_dependency
from litegpu.tools.evaluation.pictures import needed, read_lines
from litegpu.tools.files import try_to_write, write_bytes
from litegpu.tools.flags import Flag

ARGUMENTS: dict[str, str] = {}
DEVKIT = Flag(
    "ilsvrc_devkit_dir", str, "", "folder of the ILSVRC 2012 development kit", metavar="FOLDER"
)
OUTPUT = Flag(
    "validation_labels_output", str, "", "text file to write, one label per line", metavar="FILE"
)
FLAGS = (DEVKIT, OUTPUT)
EXAMPLES = (
    "litegpu generate_validation_labels --ilsvrc_devkit_dir=ILSVRC2012_devkit_t12 \\\n"
    "    --validation_labels_output=truth.txt",
)
NOTES = (
    "ILSVRC's development kit has a synset number for each picture. A label is the first word of "
    "a synset. Use these labels for imagenet_image_classification if the model's labels are first "
    "words of synsets, too.",
)

_SYNSETS = Path("data", "meta.mat")
_NUMBERS = Path("data", "ILSVRC2012_validation_ground_truth.txt")


def main(args: argparse.Namespace) -> int:
    """Write the labels; raise FileError if the folder is not ImageNet's development kit."""
    folder, output = Path(needed(args, DEVKIT)), needed(args, OUTPUT)
    try_to_write(OUTPUT.name, output)
    words = synset_words(folder / _SYNSETS)
    numbers = read_lines(str(folder / _NUMBERS), "validation ground truth")
    labels = []
    for number in numbers:
        if not number.strip().isdecimal() or int(number) not in words:
            raise FileError(
                f"'{folder / _NUMBERS}' has the line '{number}', which is not a synset of "
                f"{_SYNSETS.name}. Give --{DEVKIT.name} the unchanged kit."
            )
        labels.append(words[int(number)])
    write_bytes(OUTPUT.name, output, "".join(f"{label}\n" for label in labels).encode())
    return 0


def synset_words(path: Path) -> dict[int, str]:
    """Return the first word of each synset, by the synset's number.

    Raises:
        FileError: the file cannot be read, or has no synsets.
        MissingDependencyError: scipy is not installed.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise missing_dependency("scipy", "ilsvrc", "Reading ImageNet's synsets") from error
    try:
        synsets = loadmat(path, squeeze_me=True)["synsets"]
        number, _, words, *_ = synsets.dtype.names  # by position, as listed in the kit's readme
        return {int(each[number]): str(each[words]).split(",")[0] for each in synsets}
    except Exception as error:  # scipy's reader raises all kinds of errors
        raise FileError(
            f"The synsets '{path}' cannot be read: {getattr(error, 'strerror', None) or error}. "
            f"Give --{DEVKIT.name} the folder of the ILSVRC 2012 development kit."
        ) from error
