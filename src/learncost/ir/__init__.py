"""Floor 0, the notation: terms, lines, tables, parsing, counts, errors."""
