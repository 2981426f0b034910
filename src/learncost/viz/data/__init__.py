"""The data behind every picture, a module each: what is drawn and nothing of how."""
