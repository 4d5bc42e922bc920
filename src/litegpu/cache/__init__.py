"""What compiling a partition gave, for the next interpreter and for the next process."""
