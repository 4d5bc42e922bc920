"""Small model files that ask for much, and what litegpu takes for them."""
