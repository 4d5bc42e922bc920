"""Start, interruption and end of programs, tested on every backend that has a device."""
