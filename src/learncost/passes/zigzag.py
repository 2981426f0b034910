"""Apply the plan zigzag: over several devices, causal positions are in an order that balances the visible pairs."""

from __future__ import annotations

from dataclasses import replace

from learncost.ir.table import Table


def zigzag(table: Table) -> Table:
    """Return the step that requests zigzag order from sharding (sharding/zigzag.py); no effect on one device."""
    return replace(table, zigzag={})
