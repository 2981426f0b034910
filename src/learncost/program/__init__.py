"""The schedule of a step: in which order its lines run, which arrays are alive when, and where they are stored."""
