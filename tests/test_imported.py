"""Modules that are read from PyTorch's exported graphs, against the modules themselves under autograd."""

import pytest
import torch
from module_parity import parity, read_module

import learncost as lc
from learncost.ir.errors import InputError
from learncost.verification.imported import products
from own_modules import CASES, Block
from own_operators import GROUPS
from sampling import sampled

REFUSED = {"transformer": "data-dependent"}
DRAWN = ("dropped_shares",)
"""Of these the module itself has other numbers in every run."""


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("name", sampled(sorted(CASES.keys() - REFUSED.keys()), 3))
def test_values_and_gradients_are_those_of_the_module(name):
    module, inputs, symbols = CASES[name]()
    found = parity(module, inputs, read_module(module, inputs, symbols))
    assert found.value < 1e-10
    assert found.gradient < 1e-10
    assert found.module < 1e-4 or name in DRAWN


@pytest.mark.slow  # tests/test_importing.py has one that every command reads
@pytest.mark.parametrize(
    "name", sampled(["nanogpt_manual", "encoder", "loop_of_layers", "shared_by_turns"], 4, start=2)
)
def test_equal_blocks_become_a_repeat_that_costs_the_same(name):
    """Under a book that counts every operation, the table with a repeat and the one without have the same price.

    Where all turns read what learns, the total of its gradient begins with a turn's part, and adds nothing to it.
    """
    module, inputs, symbols = CASES[name]()
    texts = [read_module(module, inputs, symbols, fold=fold).text for fold in (True, False)]
    assert "  repeat n_layer carry " in texts[0]
    assert "repeat" not in texts[1]
    sizes = {letter: 3 for ops in symbols.values() for letter in ops.split() if not letter.isdigit()}
    costs = [lc.cost(lc.layer(text), price_book="run", **sizes) for text in texts]
    assert costs[0].total.flops == costs[1].total.flops
    assert costs[0].total.maccs == costs[1].total.maccs
    assert costs[0].parameters == costs[1].parameters


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("name", sorted(GROUPS))
def test_operators_have_the_values_and_gradients_of_pytorch(name):
    module = GROUPS[name]()
    found = parity(module, (), read_module(module, ()))
    assert found.value < 1e-10
    assert found.gradient < 1e-10
    assert found.module < 1e-4


@pytest.mark.parametrize("name", ["nanogpt_flash", "unet"])
def test_products_are_those_that_pytorch_counts(name):
    module, inputs, symbols = CASES[name]()
    assert products(module, inputs, read_module(module, inputs, symbols)).equal


@pytest.mark.parametrize("size", [(3, 3), (2, 9), (5, 4)])
def test_one_polynomial_is_right_at_other_sizes(size, open_block):
    """A table with open letters costs what the module costs at fixed sizes, a batch and length of its heads too."""
    module, table = open_block
    batch, length = size
    fixed = read_module(module, (torch.randn(batch, length, 12),))
    for book in ("run", "matmul"):
        open_cost = lc.cost(table, B=batch, M=length, price_book=book)
        fixed_cost = lc.cost(lc.layer(fixed.text), price_book=book)
        assert open_cost.total.flops == fixed_cost.total.flops
        assert open_cost.total.maccs == fixed_cost.total.maccs


@pytest.fixture(scope="module")
def open_block():
    """A block of attention whose example has a batch, a length and heads of one size."""
    module = Block(12, 3, True)
    return module, lc.layer(read_module(module, (torch.randn(3, 3, 12),), {"x": "B M 12"}).text)


PAIRED = ("ab,bc,cd->ad", "abc,cd,de->abe", "a,b,c->abc", "ab,cb,cd->", "...a,ab,bc->...c", "aab,bc->ac", "ij,ij->")


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("equation", PAIRED)
def test_einsum_pairs_its_operands_as_pytorch_does(equation):
    class E(torch.nn.Module):
        def forward(self, *operands):
            return torch.einsum(equation, *operands)

    sizes = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "i": 7, "j": 8}
    parts = equation.partition("->")[0].replace("...", "").split(",")
    operands = tuple(torch.randn(*(sizes[letter] for letter in part), requires_grad=True) for part in parts)
    imported = read_module(E(), operands)
    found = parity(E(), operands, imported)
    assert max(found.value, found.gradient) < 1e-12
    assert products(E(), operands, imported).equal


def test_a_letter_from_which_a_size_follows_alone_is_a_size_of_the_model():
    module, inputs, symbols = CASES["self_loops"]()
    model = lc.from_module(module, inputs, symbols)
    assert lc.cost(model, N=6, E=9).total.flops == lc.cost(lc.from_module(module, inputs)).total.flops
    with pytest.raises(lc.InputError, match="leaves E open: give E=N"):
        lc.cost(model, N=6)


def test_inputs_of_forward_by_row_and_by_name():
    class V(torch.nn.Module):
        def forward(self, x, *more, scale=2.0):
            return (x + sum(more)) * scale

    class K(torch.nn.Module):
        def forward(self, **batch):
            return (batch["x"] * batch["y"]).sum()

    several = (torch.randn(5, 3), torch.randn(5, 3), torch.randn(3))
    sizes = "add[n n2] = more_0[n n2] + more_1[n2]"  # those of the examples, which `*more` has always
    assert sizes in read_module(V(), several).text
    assert lc.from_module(V(), several).sizes == {"n": 5, "n2": 3}
    with pytest.raises(
        lc.InputError,
        match=r"with B symbolic: its code converts it to a number, .* or an input or weight of fixed size .*B = 5",
    ):
        lc.from_module(V(), several, symbols={"x": "B f"})
    assert lc.from_module(V(), several[:1], symbols={"x": "B f"}).table.axes["x"] == ("B", "f")  # none more
    named = {"x": several[0], "y": several[1]}
    assert parity(K(), named, read_module(K(), named)).value < 1e-12
    opened = read_module(K(), named, {"x": "B f", "y": "B f"})
    for rows in (3, 5):
        apart = parity(K(), {"x": torch.randn(rows, 3), "y": torch.randn(rows, 3)}, opened)
        assert max(apart.value, apart.gradient) < 1e-12


class Lengths(torch.nn.Module):
    """Asks whether all sequences of a batch are as long as a mask says, as Lumina 2 of diffusers does."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, mask):
        lengths = mask.sum(1).tolist()
        return self.linear(x) if len(set(lengths)) > 1 else x


def test_a_size_that_only_a_run_has_is_refused_with_its_line():
    inputs = {"x": torch.ones(2, 4, 3), "mask": torch.ones(2, 4, dtype=torch.long)}
    with pytest.raises(
        InputError, match=r"test_imported\.py:\d+: `.*set\(lengths\).*` converts a size or a value to a number.*as_run"
    ):
        lc.from_module(Lengths(), inputs)


class Twice(torch.nn.Linear):
    def forward(self, x):
        return torch.ops.learncost_registered_later.twice(super().forward(x))


def test_a_composite_operator_that_is_registered_between_two_readings_is_decomposed():
    given = (torch.randn(2, 3),)
    read_module(torch.nn.Linear(3, 3), given)
    library = torch.library.Library("learncost_registered_later", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeImplicitAutograd")
    module = Twice(3, 3)
    found = parity(module, given, read_module(module, given))
    assert found.value < 1e-12
    assert found.gradient < 1e-12


def overrides():
    """The kernels of all composite operators, and their rules for fake tensors, by what each calls."""

    def called(kernel):
        kernel = getattr(kernel, "func", kernel)
        return getattr(kernel, "__qualname__", kernel)

    composites = torch.export.exported_program._collect_all_valid_cia_ops()
    kernels = {op: {key: called(kernel) for key, kernel in op.py_kernels.items()} for op in composites}
    rules = torch._subclasses.fake_impls.op_implementations_dict
    return kernels, {op: called(rules[op]) for op in composites if op in rules}


def test_a_reading_leaves_the_kernels_of_composite_operators_as_they_were():
    exported, matmul = torch.export.exported_program, torch.ops.aten.matmul.default
    module, given, _ = CASES[sorted(CASES.keys() - REFUSED.keys())[0]]()
    read_module(module, given)  # PyTorch registers rules of its own at its first import of some modules
    matmul.py_kernels[torch._C.DispatchKey.CPU] = abs  # a kernel that somebody registers
    try:
        with exported._override_composite_implicit_decomp({matmul: exported._special_op_to_preserve_cia}):
            inside = overrides()  # PyTorch itself forgets the rules that it had before
        plain = overrides()
        read_module(module, given)
        assert overrides() == plain != inside
        assert matmul.py_kernels[torch._C.DispatchKey.CPU] is abs
    finally:
        del matmul.py_kernels[torch._C.DispatchKey.CPU]
