"""`learncost list WHAT`: what there is, a file for each kind of things."""
