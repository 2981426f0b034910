"""Floor 6: engines run the tables of training steps."""
