"""Plans: other ways to run the same step. plan.py has the registry; a module is one rewriting."""
