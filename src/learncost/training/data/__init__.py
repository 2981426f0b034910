"""Training data: plain files, prepared once in the folder of a run, and random batches of them."""
