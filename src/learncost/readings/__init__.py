"""Floor 3, the readings: each a small interpreter that loops over the lines of a table; none imports another."""
