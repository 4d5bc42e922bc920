"""The delegate: which partitions run on the GPU, and the report about them."""
