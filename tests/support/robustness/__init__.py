"""How programs live and end: every test runs on every backend that has a device."""
