"""The home and cache folders of this user, if the user has a home folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from litegpu.errors import OptionsError


def with_home(path: str) -> str:
    """Return a path with a leading ~ or ~name replaced by that user's home folder.

    Raises OptionsError if the user has no home folder, as in some containers.
    """
    found = os.path.expanduser(path)
    if found.startswith("~"):
        home = found.partition("/")[0]
        raise OptionsError(
            f"'{path}' cannot be resolved: {home} stands for an unknown home folder. Set "
            "HOME, or name the folder without ~."
        )
    return found


def user_cache(part: str, needed_for: str) -> Path:
    """Return this user's cache folder for `part`, which may not exist yet.

    Raises OptionsError if the user has no home folder; the error says that `needed_for` needs one.
    """
    import platformdirs

    with contextlib.suppress(RuntimeError):  # old Python versions return the ~ instead
        folder = platformdirs.user_cache_path("litegpu", appauthor=False)
        if folder.is_absolute():
            return folder / part
    raise OptionsError(
        f"{needed_for} needs a folder, and this user has no home folder. Set HOME, or name one by "
        "serialization_dir, LITEGPU_CACHE (what is compiled) or LITEGPU_MODELS (models)."
    )
