"""`python -m litegpu TOOL …`, where the command `litegpu` is not on the path."""

from __future__ import annotations

import sys

from litegpu.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
