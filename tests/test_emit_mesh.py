"""Programs of one of several devices: for PyTorch, and for JAX with the function that gives every device its parts."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import learncost as lc
from learncost.backends import program
from learncost.backends.records import fill, unfold
from learncost.ir.errors import InputError
from learncost.ir.polynomial import shape_of
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.sharding.devices import part, together
from learncost.sharding.mesh import mesh
from learncost.sharding.place import place
from learncost.sharding.presets import chosen
from learncost.sharding.zigzag import ordered
from learncost.verification.check import finite_arrays, values_of


def test_a_program_for_jax_says_how_every_array_is_cut():
    text = lc.emit("gpt2", "jax", mesh="dp=2,tp=2", placement="ddp,megatron", n_layer=1, vocab_size=64)
    compile(text, "step.py", "exec")
    assert "def over(mesh: Mesh):" in text
    assert 'parts = Weights(PartitionSpec("tp"), PartitionSpec(), Block(' in text
    assert "jax.lax.psum(X, over)" in text


def test_a_program_for_pytorch_fills_parts_up_and_leaves_out_what_was_added():
    text = lc.emit("gpt2", "torch", mesh="dp=5", placement="fsdp", n_layer=1)
    assert (
        'trimmed(all_gather(weights.wte, mesh, "dp", 0)' in text or 'trimmed(all_gather(w.wte, mesh, "dp", 0)' in text
    )
    assert "reduce_scatter(filled(" in text


def test_a_program_for_pytorch_takes_a_mesh():
    text = lc.emit("gpt2", "torch", mesh="cp=2", placement="cp", n_layer=1)
    assert "from torch.distributed.device_mesh import DeviceMesh" in text
    assert 'mesh.get_local_rank("cp")' in text


@pytest.mark.parametrize(
    ("backend", "flags", "message"),
    [
        ("c99", {"mesh": "dp=2", "placement": "ddp"}, "mesh requires backend='numpy', torch or jax"),
        ("jax", {"placement": "ddp"}, "requires mesh, for example"),
        ("jax", {"mesh": "tp=2", "placement": "megatron"}, "50,257, which is not divisible by the mesh: use 50,258"),
        ("jax", {"mesh": "pp=2", "placement": "pp"}, "pipeline stages require backend='torch'"),
        ("jax", {"mesh": "cp=2", "placement": "cp", "plan": "zigzag"}, "since it reorders positions"),
    ],
)
def test_what_no_program_has_is_refused(backend, flags, message):
    with pytest.raises(InputError, match=message):
        lc.emit("gpt2", backend, **flags)


def test_rows_are_not_sent_by_programs_for_jax():
    with pytest.raises(InputError, match="dispatch is a collective, which jax programs do not support yet: use torch"):
        lc.emit("mixtral-8x7b", "jax", mesh="ep=2", placement="ep", num_hidden_layers=1)


CASES = (
    ("gpt2", "dp=2,tp=2", "fsdp,megatron-sp", ""),
    ("llama", "cp=4", "cp", ""),
    ("llama", "cp=2", "ulysses", "flash"),
    ("mistral", "cp=4", "cp", "flash,ring"),
    ("bart", "tp=2", "megatron", ""),
    ("gpt2", "dp=2,shard=2", "hsdp", "chunked-loss"),
    ("gpt2", "dp=3", "zero-2", "flash"),
    ("gpt2", "dp=3,tp=2", "fsdp,megatron-sp", ""),  # parts of parts are filled up
)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)))
def test_jax_learns_over_a_mesh_what_one_device_learns(case):
    """In a process of its own, as JAX makes devices of a processor's threads only before it begins."""
    environment = {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=6",
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
    }
    ran = subprocess.run(
        [sys.executable, __file__, str(case)], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 1e-12


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize(
    "case", [*CASES, ("mixtral", "ep=2", "ep", ""), ("llama", "cp=2,tp=2", "cp,megatron", "zigzag,flash")]
)
def test_threads_learn_over_a_mesh_what_one_device_learns(case):
    """The program for NumPy, a thread for each device: what it sends, and in what parts, is in its own text."""
    assert _worst(*case, on=_on_threads) < 1e-12


def _worst(family, mesh_text, placement, plan, on=None):
    """The largest error of loss and new weights over devices, of the largest gradient or number of their own."""
    sizes_of_model = {"num_hidden_layers": 2, "vocab_size": 32, "num_key_value_heads": 4}
    model, grid = build(small(family, **sizes_of_model)), mesh(mesh_text)
    sizes = run_sizes(model, 12, 8, None)
    table = planned(without_gradients(step(model, "bp", "sgd")), plan)
    arrays = finite_arrays(table, sizes)
    expected = values_of(table, arrays, sizes)
    placed = place(table, grid, chosen(None, placement), sizes, plan=plan)
    arrays_by_name = (on or _on_jax)(placed, arrays, sizes)
    gradients = [name for name, value in table.values.items() if value.role == "gradient" and name in expected]
    largest = max(np.abs(expected[name]).max() for name in gradients if not isinstance(expected[name], list))
    return max(
        float(np.abs(array - expected[name]).max() / max(largest, np.abs(expected[name]).max()))
        for name, array in arrays_by_name.items()
    )


def _called(written, namespace, step, arrays, *devices):
    """The results of a program by the names of its table."""
    results = step(*(fill(tree, arrays, namespace) for tree in written.parameters), *devices)
    return dict(pair for tree, one in zip(written.results, results, strict=True) for pair in unfold(tree, one))


def _on_jax(placed, arrays, sizes):
    import jax

    written = program(placed.table, "jax", sizes=sizes | placed.sizes)
    namespace = {"__name__": "step"}
    exec(compile(written.text, "step.py", "exec"), namespace)
    shape = [number for _, number in placed.mesh.axes]
    devices = jax.sharding.Mesh(np.array(jax.devices()[: placed.mesh.devices]).reshape(shape), placed.mesh.names)
    return _called(written, namespace, namespace["over"](devices), arrays)


def _on_threads(placed, arrays, sizes):
    table, grid = placed.table, placed.mesh
    written = program(table, sizes=sizes | placed.sizes)
    namespace = {"__name__": "step"}
    exec(compile(written.text, "step.py", "exec"), namespace)

    def run(device):
        own = {**sizes, **placed.sizes, **grid.sizes_at(device.place)}
        given = {
            name: part(ordered(arrays[name], table.axes[name], placed.zigzag, own | grid.sizes), table.axes[name], own)
            for name in (*table.weights, *table.inputs)
        }
        return _called(written, namespace, namespace[written.function], given, device)

    with ThreadPoolExecutor(grid.devices) as threads:
        found = [*threads.map(run, namespace["Device"].all(**grid.sizes))]
    shape = {name: shape_of(placed.whole.axes[name], sizes) for name in found[0]}
    return {
        name: ordered(
            together([each[name] for each in found], placed.layouts[name], grid, shape[name]),
            placed.whole.axes[name],
            placed.zigzag,
            sizes | grid.sizes,
            back=True,
        )
        for name in found[0]
    }


if __name__ == "__main__":
    print(_worst(*CASES[int(sys.argv[1])]))
