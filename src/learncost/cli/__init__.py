"""Floor 7: the command line, reports and displays. Faces format, they never compute."""
