"""Published trainings on many devices, and what learncost predicts of each: what `benchmarks/clusters.py` asks."""
