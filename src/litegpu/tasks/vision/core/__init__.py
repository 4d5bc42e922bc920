"""What the tasks on pictures share."""
