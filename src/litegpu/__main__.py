"""`python -m litegpu TOOL …` does the same as `litegpu TOOL …`, if that is not on the path."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process; return the exit status."""
    try:
        from litegpu.tools.cli import main as run  # an interrupt may come while this is imported

        return run()
    except KeyboardInterrupt:
        print("litegpu: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
