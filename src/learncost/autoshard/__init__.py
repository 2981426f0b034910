"""The search over meshes: the memory, time and traffic of a sharded step and of its pipelines."""
