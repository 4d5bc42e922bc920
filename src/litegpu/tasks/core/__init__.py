"""Code shared by all tasks: options, models and running modes."""
