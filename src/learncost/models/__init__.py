"""Models: configurations and their readers, families and presets as data, and the tables built of them."""
