"""Every command that only reads tables, for every preset and every class of its family, with options in pairs.

    python -m tests.commands

What it checks, what it takes and what is committed beside it says `python -m tests.commands --help`.
"""
