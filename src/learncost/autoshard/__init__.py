"""Training on many devices: what a placed step takes on each of them, pipelines, time over links, and the search."""
