"""A module of a user's file as a table: the file is run, because its path was typed, and what it builds is read."""
