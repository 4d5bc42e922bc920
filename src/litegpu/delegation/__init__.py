"""The delegate: what runs on the GPU, partition by partition, and what the user is told of it."""
