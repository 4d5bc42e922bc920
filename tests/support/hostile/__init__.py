"""Small model files that request a lot of work, and the cost of loading them."""
