"""Contest: learning procedures on the same data, from the same weights, with the same budget."""
