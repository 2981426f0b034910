import ast
import json
import subprocess
import sys
import tracemalloc
from random import Random

import numpy as np
import pytest
import torch

import learncost as lc
from learncost.backends import BACKENDS, program
from learncost.cli.command import main
from learncost.interpreter import execute as definition
from learncost.ir.polynomial import shape_of
from learncost.layers.layer import shipped, shipped_layer
from learncost.passes.lower import lower
from learncost.verification.sample import random_arrays, small_sizes
from programs import execute, namespace, worst
from sampling import LEARNING, sampled
from writing import SIZES, Writer

NEAR = 1e-12  # of a number, or of one where it is smaller: the same operations in another order


def expected(table, arrays, sizes):
    """What the table means: every value by its name."""
    values = dict(arrays)
    definition(lower(table), values, sizes)
    return values


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("embedding", "jax"),  # whose gradient has several rows of one index, which an update of JAX overwrites
        *((name, backend) for name in shipped() for backend in BACKENDS if backend != "jax"),
        *sampled(((name, "jax") for name in shipped() if name != "embedding"), 6),
    ],
)
def test_a_layer_forward_backward_and_update(name, backend):
    table = lc.derive(shipped_layer(name)).step
    sizes = small_sizes(table)
    arrays = random_arrays(table, sizes)
    executed = execute(table, backend, arrays, sizes)
    assert executed.keys() == set(table.outputs)
    assert worst(executed, expected(table, arrays, sizes))[1] < NEAR


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("name", LEARNING)
def test_emitted_gradients_are_those_of_autograd_through_the_emitted_forward_pass(name):
    # The forward program alone, differentiated by PyTorch, knows nothing of our rules of derivation.
    layer = shipped_layer(name)
    table = lc.derive(layer).step
    sizes = small_sizes(table)
    arrays = random_arrays(table, sizes)
    gradients = execute(table, "torch", arrays, sizes)
    forward = program(layer.table, "torch", "forward")
    tensors_given = {n: torch.as_tensor(np.array(arrays[n])) for n in (*layer.table.inputs, *layer.table.weights)}
    names_wanted = [n for n in tensors_given if f"d{n}" in gradients]
    for n in names_wanted:
        tensors_given[n].requires_grad_()
    more = {name: sizes[axis] for name, axis in forward.sizes.items()}
    outputs = namespace(forward.text)["forward"](*(tensors_given[n] for n in forward.parameters), **more)
    outputs = outputs if len(forward.results) > 1 else (outputs,)
    seeds = [torch.as_tensor(arrays.get(f"d{n}", np.zeros(()))) for n in forward.results]
    computed = torch.autograd.grad(outputs, [tensors_given[n] for n in names_wanted], seeds, allow_unused=True)
    autograd = {f"d{n}": g.numpy() for n, g in zip(names_wanted, computed, strict=True) if g is not None}
    assert autograd
    assert worst(autograd, gradients)[1] < NEAR


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("backend", "seed"), [(b, s) for b, n in (("numpy", 40), ("torch", 20), ("jax", 2)) for s in range(n)]
)
def test_layers_written_at_random(backend, seed):
    writer = Writer(Random(seed))
    table = lc.derive(lc.layer(writer.write())).step
    generator = np.random.default_rng(seed)
    arrays = writer.arrays(generator)
    arrays |= {n: generator.standard_normal(shape_of(table.axes[n], SIZES)) for n in table.inputs if n not in arrays}
    assert worst(execute(table, backend, arrays, SIZES), expected(table, arrays, SIZES))[1] < 100 * NEAR


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_step_of_a_line_in_a_repeat_is_not_one_of_a_line_of_that_name_outside(backend):
    """Both scopes make a first part of V's gradient in steps of other axes."""
    text = """drawn(X T R; W V U K) -> Z
  Y[c] = normalize[c](W[c])
  F[s c] = Y[c] X[s] where c < s < c + 3
  repeat n carry Y:
    P[] = Y[z] W[z] #c^0.5[]
    W[c] = -0.5[] W[c] P[] V[]
    Q[s' c] = #c^0.5[] W[c] #c^0.5[] W[c] X[s'] where s' <= c
    D[c] = Q[s' c] U[c s'] 0.3[]
    Y[c] = Y[c] + D[c]
  Z[a] = F[s=T[z a] z] W[c=R[]] Y[z] K[z] where a <= z < a + 9"""
    table = lc.derive(lc.layer(text)).step
    sizes = small_sizes(table)
    arrays = random_arrays(table, sizes)
    assert worst(execute(table, backend, arrays, sizes), expected(table, arrays, sizes))[1] < NEAR


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_one_half_of_a_layer(phase):
    table = lc.derive(shipped_layer("attention")).step
    sizes = small_sizes(table)
    values = expected(table, random_arrays(table, sizes), sizes)
    names = namespace(lc.emit("attention", phase=phase))
    if phase == "forward":
        arguments_given = [values[n] for n in ("XQ", "XK", "XV", "WQ", "WK", "WV", "WO")]
        np.testing.assert_allclose(names["forward"](*arguments_given), values["Y"], rtol=NEAR, atol=NEAR)
        return
    arguments = names["backward"].__code__.co_varnames[: names["backward"].__code__.co_argcount]
    gradients = names["backward"](*(values[n] for n in arguments))
    for name, array in zip(("dXQ", "dXK", "dXV", "dWQ", "dWK", "dWV", "dWO"), gradients, strict=True):
        np.testing.assert_allclose(array, values[name], rtol=NEAR, atol=NEAR)


def test_a_layer_with_an_optimizer_gives_new_weights():
    names = namespace(lc.emit("norm", optimizer="sgd"))
    X, g, b, dY = np.arange(12.0).reshape(1, 3, 4), np.ones(4), np.zeros(4), np.ones((1, 3, 4))
    *_, dg, db, g_new, b_new = names["step"](X, 0.5, g, b, dY)
    np.testing.assert_array_equal(g_new, g - 0.5 * dg)
    np.testing.assert_array_equal(b_new, b - 0.5 * db)


# What the text is.

ALLOWED = {"math", "typing", "numpy", "torch", "torch.nn", "jax", "jax.numpy", "scipy.special"}


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*shipped(), "gpt2"])
def test_a_program_names_nothing_of_ours(name, backend):
    tree = ast.parse(lc.emit(name, backend))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    assert modules <= ALLOWED
    assert not modules & {other.module for other in BACKENDS.values() if other.name != backend}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not any("learncost" in name for name in names)


def test_ruff_finds_no_undefined_name_and_no_unused_import(tmp_path):
    for name in ("attention", "mixture_of_experts", "recurrent", "gpt2", "bert-base"):
        for backend in BACKENDS:
            (tmp_path / f"{name}_{backend}.py").write_text(lc.emit(name, backend), encoding="utf-8")
    # Pyflakes' rules but unused variables: what a table makes and nobody reads is made.
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F", "--ignore=F841", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_identifiers_are_one_to_one(seed):
    written = program(lc.derive(lc.layer(Writer(Random(seed)).write())).step)
    assert len(set(written.names.values())) == len(written.names)


def test_names_that_ask_for_the_same_identifier():
    # X.2 and X_2, and d(X.2) beside the second part of dX; `lambda` is Python's word, `softmax` the helper's name.
    text = """
    odd(X X_2 lambda softmax; N) -> Y
      X[a b] = X[a b] X_2[a b]
      Z[a b] = softmax[b](X[a b])
      Q[a b] = Z[a b] X[a b]
      R[a b] = Q[a b] lambda[a b]
      N.2[a b] = R[a b] + N[a b]
      Y[a b] = N.2[a b] + softmax[a b]
    """
    table = lc.derive(lc.layer(text)).step
    sizes = {"a": 3, "b": 4}
    arrays = random_arrays(table, sizes)
    assert worst(execute(table, "numpy", arrays, sizes), expected(table, arrays, sizes))[1] < NEAR
    names = program(table).names
    assert len(set(names.values())) == len(names)
    assert names["X.2"] != names["X_2"]


def test_the_text_is_the_same_in_every_process():
    code = "import learncost as lc; print(lc.emit('mixture_of_experts', 'torch') + lc.emit('gpt2', procedure='pepita'))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_the_library_is_not_needed_to_emit():
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'jax')); import learncost as lc;"
        "print(len(lc.emit('attention', 'torch') + lc.emit('gpt2', 'jax')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 10_000


def test_cost_does_not_import_it():
    code = "import sys; from learncost.cli.command import main; main(['cost', 'gpt2', '--json']);"
    code += "print([name for name in sys.modules if 'emit' in name], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)


# How it runs.


def test_what_nothing_reads_any_more_is_released():
    # Attention with long sequences: R, S, P, dP, dS and dR are B h M N each and would all be alive at the end.
    text = lc.emit("attention")
    unreleased = "\n".join(line for line in text.splitlines() if not line.strip().startswith("del "))
    sizes = {"B": 1, "M": 128, "N": 128, "d": 16, "h": 4, "k": 4}
    table = lc.derive(shipped_layer("attention")).step
    arrays = random_arrays(table, sizes)
    score_bytes = 8 * sizes["h"] * sizes["M"] * sizes["N"]
    peaks = []
    for program_text in (text, unreleased):
        function = namespace(program_text)["step"]
        arguments_given = [arrays[n] for n in ("XQ", "XK", "XV", "WQ", "WK", "WV", "WO", "dY")]
        function(*arguments_given)
        tracemalloc.start()
        function(*arguments_given)
        peaks.append(tracemalloc.get_traced_memory()[1] / score_bytes)
        tracemalloc.stop()
    assert peaks[1] > 6
    # The most at one time: dP, P and what the softmax's gradient makes of them, beside arrays without a second length.
    assert peaks[0] < 5


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("name", ["attention", "norm", "loss", "embedding", "mixture_of_experts", "recurrent"])
def test_torch_compile_takes_it_whole(name):
    def compiled(function, sizes):
        return torch.compile(function, fullgraph=True, backend="eager", dynamic=False)

    table = lc.derive(shipped_layer(name)).step
    sizes = small_sizes(table)
    arrays = random_arrays(table, sizes)
    assert worst(execute(table, "torch", arrays, sizes, compiled), expected(table, arrays, sizes))[1] < NEAR


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_numbers_keep_their_type(backend):
    table = lc.derive(shipped_layer("attention")).step
    sizes = small_sizes(table)
    arrays = {name: array.astype(np.float32) for name, array in random_arrays(table, sizes).items()}
    assert {array.dtype for array in execute(table, backend, arrays, sizes).values()} == {np.dtype("float32")}


# What is wrong.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("emit", "needs SUBJECT"),
        ("emit atention", "no layer or model is called 'atention'; did you mean 'attention'"),
        ("emit attention --backend tensorflow", "no backend is called 'tensorflow' (there are numpy, torch, jax)"),
        ("emit attention --backend numpi", "the nearest is 'numpy'"),
        ("emit attention --phase forwards", "phase must be one of step, forward, backward"),
        ("emit attention --procedure bp", "--procedure applies to models"),
        ("emit attention --hidden-size 8", "hidden-size applies to models"),
        ("emit attention --optimizer adam", "the nearest is 'adamw'"),
        ("emit gpt2 --phase forward", "--phase forward applies to layers"),
        ("emit gpt2 --procedure bb", "there are bp, recompute"),
        ("emit gpt2 --hiden-size 8", "did you mean '--hidden-size'"),
        ("emit gpt2 --optimizer adam", "the nearest is 'adamw'"),
        ("emit gpt2 --backend c99 --accumulate 0", "--accumulate must be a whole number from 1"),
        ("emit nothing.table", "nothing.table cannot be read"),
        ("emit norm --output no/such/folder.py", "no/such/folder.py: there is no folder no/such"),
    ],
)
def test_what_is_wrong_is_one_line(line, message, capsys):
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_other_things_are_refused():
    for optimizer in ("adafactor", "none"):
        with pytest.raises(lc.InputError, match="epilogue-update requires an elementwise optimizer"):
            lc.emit("gpt2", optimizer=optimizer, plan="epilogue-update", n_layer=1)
    with pytest.raises(lc.InputError, match="emit takes a layer, a table or a model, not 3"):
        lc.emit(3)


def test_the_command_writes_what_the_function_gives(tmp_path, capsys):
    assert main(["emit", "norm", "--backend", "torch"]) == 0
    assert capsys.readouterr().out == lc.emit("norm", "torch")
    path = tmp_path / "norm.py"
    assert main(["emit", "norm", "--backend", "torch", "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert path.read_text(encoding="utf-8") == lc.emit("norm", "torch")
    assert "Written by learncost" in lc.emit("norm", "torch")
    assert "learncost emit norm --backend torch" in lc.emit("norm", "torch")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["key_distances", "places"])
def test_a_layer_of_constants_begins_with_a_number_of_the_library(name, backend):
    table, sizes = shipped_layer(name).table, {"M": 4, "N": 3}
    assert worst(execute(table, backend, {}, sizes), expected(table, {}, sizes))[1] == 0
