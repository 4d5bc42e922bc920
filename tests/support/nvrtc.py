"""Whether CUDA's compiler is here: `make setup` installs it wherever NVIDIA has wheels of it."""

from __future__ import annotations

import pytest

from litegpu import MissingDependencyError
from litegpu.backends.cuda.compiler import compile_source, options_for


def _missing() -> str:
    try:
        compile_source("", options_for((9, 0)))
    except MissingDependencyError as error:
        return str(error)
    return ""


_REASON = _missing()
needs_nvrtc = pytest.mark.skipif(bool(_REASON), reason=_REASON)
