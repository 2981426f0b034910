"""The schedule of a step: the order of its lines, the live intervals of its arrays, and their places in memory."""
