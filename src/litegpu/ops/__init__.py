"""The package has one module per op or family of ops, imported when an op is first looked up."""
