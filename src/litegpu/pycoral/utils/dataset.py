"""Files of labels."""

from __future__ import annotations

import os
import re
from pathlib import Path


def read_label_file(file_path: str | os.PathLike[str]) -> dict[int, str]:
    """Return the labels of a text file by their numbers.

    A line is a number and a label, separated by a colon or a space, or only a label. The number of
    the latter is that of the line, from 0.
    """
    labels = {}
    for row, line in enumerate(Path(file_path).read_text(encoding="utf-8").splitlines()):
        numbered = re.fullmatch(r"(\d+)[:\s]+(.+)", line.strip())
        number, label = numbered.groups() if numbered else (row, line.strip())
        labels[int(number)] = label
    return labels
