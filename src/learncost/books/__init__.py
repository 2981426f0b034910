"""Price books and the errata of the publications they are taken from, as data."""
