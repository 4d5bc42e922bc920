"""What all tasks share: their options, models and running modes."""
