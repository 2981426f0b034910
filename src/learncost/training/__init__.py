"""Floor 7: training as users know it: text in, a run folder with weights that others can load out."""
