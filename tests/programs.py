"""Emitted programs executed in a bare namespace, on arrays by the names of the table."""

import numpy as np

from learncost.backends import fill, program, unfold


def namespace(text):
    """What a program defines, executed where nothing of ours is."""
    names = {"__name__": "emitted"}
    exec(compile(text, "emitted.py", "exec"), names)
    return names


def to_backend(backend, value):
    if backend == "torch":
        import torch

        return torch.as_tensor(np.array(value))
    if backend == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return jax.numpy.asarray(value)
    return np.asarray(value)


def whole(function, sizes):
    """The function compiled by XLA, which is quicker than compiling every operation of it alone."""
    import jax

    return jax.jit(function, static_argnames=tuple(sizes))


def as_it_is(function, sizes):
    return function


def execute(table, backend, arrays, sizes, wrap=None, **options):
    """The results of a table's program by the names of the table, as NumPy arrays; `wrap` compiles the function."""
    wrap = wrap or (whole if backend == "jax" else as_it_is)
    written = program(table, backend, **options)
    names = namespace(written.text)
    values = {name: to_backend(backend, arrays[name]) for name in (*table.inputs, *table.weights)}
    arguments = [fill(tree, values, names) for tree in written.parameters]
    function = names[written.function]
    more = {size: sizes[name] for name, size in written.sizes.items()}
    result = wrap(function, more)(*arguments, **more)
    results = result if len(written.results) > 1 else (result,)
    return {
        n: np.asarray(v) for tree, result in zip(written.results, results, strict=True) for n, v in unfold(tree, result)
    }


def worst(found, expected):
    """The largest difference of any entry, over one or the size of the array's largest; which name has it."""
    errors = {}
    for name, array in found.items():
        right = np.asarray(expected[name])
        assert array.shape == right.shape, name
        assert np.isfinite(right).all(), name
        scale = max(1.0, float(np.max(np.abs(right), initial=0)))
        difference = np.abs(array * 1.0 - right)  # truths as numbers, too
        errors[name] = float(np.max(difference, initial=0)) / scale
    return max(errors.items(), key=lambda item: float("inf") if np.isnan(item[1]) else item[1])
