"""Training: files in, a run folder out with weights that other libraries load; contests of learning procedures."""
