"""The engine's step measured against PyTorch and JAX: the same model, weights and batches, fresh processes in turn.

From the outside in: `rounds` leads the processes through a case (`subject`), `process` is the near end of a process and
`worker` the far one, and the sides are what a worker runs: `engine_side`, `torch_side`, `jax_side`, and `floor_side`,
which times the step's products (`floor`) alone. `check` says whether the sides do the same, `show` shows the `result`.
"""
