"""The answers of every command, as data and as tables on screens."""
