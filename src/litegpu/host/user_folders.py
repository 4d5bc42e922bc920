"""Folders of this user, on machines where users have any."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from litegpu.errors import OptionsError


def with_home(path: str) -> str:
    """Return a path with the user's home where it begins with ~, or another's where with ~name.

    Raises OptionsError where there is no such home: containers have users without one.
    """
    found = os.path.expanduser(path)
    if found.startswith("~"):
        home = found.partition("/")[0]
        raise OptionsError(
            f"'{path}' is in no folder: {home} stands for a home folder that nobody knows. Set "
            "HOME, or name the folder without ~."
        )
    return found


def user_cache(part: str, needed_for: str) -> Path:
    """Return where a part of what litegpu keeps for this user lies; it need not exist yet.

    Raises OptionsError, in which `needed_for` is what cannot be done, where the user has no home
    folder.
    """
    import platformdirs

    with contextlib.suppress(RuntimeError):  # old versions return the ~ instead
        folder = platformdirs.user_cache_path("litegpu", appauthor=False)
        if folder.is_absolute():
            return folder / part
    raise OptionsError(
        f"{needed_for} needs a folder, and this user has no home folder. Set HOME, or name one by "
        "serialization_dir, LITEGPU_CACHE (what is compiled) or LITEGPU_MODELS (models)."
    )
