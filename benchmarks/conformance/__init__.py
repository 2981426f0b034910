"""A conformance suite for counters: modules whose costs are known by hand, and what every counter says of them.

    python benchmarks/conformance [--counter NAME] [--case NAME] [--format text|md|json]

cases.py     the modules, with their true counts derived in comments
blocks.py    what the modules are made of, in plain torch
counter.py   what an adapter of a counter looks like
adapters.py  the adapters: torch's own counter, fvcore, ptflops, thop, calflops, torchinfo
tables.py    the adapter of learncost: the same modules as tables of equations
verdict.py   right, wrong by how much, refused, or not offered
runner.py    every counter on every case in a fresh process, twice, and the table of the results
"""
