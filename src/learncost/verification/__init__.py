"""Floor 6, the proof: tables held to differences, to a tally of what is executed, and to foreign implementations."""
