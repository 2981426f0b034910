"""Floor 2: layers as tables, what is derived from them, and the normal form that all that runs passes through."""
