"""Between the books and the faces: cost ledgers, comparisons, sweeps, rules of thumb."""
