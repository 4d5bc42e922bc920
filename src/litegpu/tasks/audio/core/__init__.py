"""Running modes and sample rates of audio tasks."""
