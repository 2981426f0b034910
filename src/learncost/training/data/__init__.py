"""Data to learn from: plain files, prepared once in the folder of a run, and the batches that are drawn from them."""
