"""In which process each GPU API was opened: what is forked later cannot use it.

The threads of a driver do not exist in a forked child and its locks stay as they were, so that
the first call there may wait for ever. The error comes before that call.
"""

from __future__ import annotations

import os

from litegpu.errors import ForkedProcessError

_openers: dict[str, int] = {}
"""The process that opened an API first, by the API's title."""


def touch(title: str) -> None:
    """Note that this process opens an API now.

    Raises ForkedProcessError if a parent had opened it before it was forked.
    """
    if _openers.setdefault(title, os.getpid()) != os.getpid():
        raise ForkedProcessError(
            f"{title} was opened before this process was forked, and works in the parent only. "
            "Start workers with multiprocessing.get_context('spawn') (in PyTorch's DataLoader: "
            "multiprocessing_context='spawn'), or fork before litegpu lists or opens devices."
        )


def refuse_if_forked() -> None:
    """Raise ForkedProcessError if a parent opened any API before this process was forked."""
    for title in tuple(_openers):
        touch(title)
