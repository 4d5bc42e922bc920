"""Code shared by the vision tasks."""
