"""`learncost list WHAT`: the package's registries."""
