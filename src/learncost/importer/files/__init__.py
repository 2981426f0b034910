"""Import of the module that a user's file builds; the file is run, since the user named it."""
