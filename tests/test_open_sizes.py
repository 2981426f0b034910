"""Sizes that stay open where a module's code computes with them, or makes numbers of them while it is exported."""

import math
from functools import partial

import pytest

import learncost as lc

torch = pytest.importorskip("torch")

from module_parity import parity, read_module  # noqa: E402

from learncost.importer.axes import simple  # noqa: E402
from learncost.importer.tracing import straight  # noqa: E402 - it needs torch
from learncost.verification.imported import products  # noqa: E402
from own_modules import Of  # noqa: E402
from sampling import sampled  # noqa: E402


def numbers_of_sizes(x):
    rows, length, _ = x.shape
    return (
        x / length,
        x + rows,
        x.sum() / x.numel(),
        x * (length**2 + 3 * rows - 1) / 7,
        x * length**-0.5 - 1 / rows,
        x.abs() ** length,
        x.sum(1) / max(1, length - 1),
        x * (length // 2),
        x.clamp(max=0.1 * length),
        x.std(1),
        torch.where(x > 0, x, rows),
        torch.nn.functional.cross_entropy(x, torch.full_like(x, 0.2), label_smoothing=0.1),
    )


def test_numbers_that_follow_from_open_sizes_are_lines():
    module = Of(numbers_of_sizes)
    torch.manual_seed(1)
    read = read_module(module, (torch.randn(3, 5, 6),), {"x": "B M 6"})
    for sizes in ((3, 5), (4, 9), (6, 6)):
        apart = parity(module, (torch.randn(*sizes, 6),), read)
        assert (apart.value, apart.gradient) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))


def registers(x):
    rows = torch.cat([torch.ones(x.shape[0], 3, 6), x], 1)
    keys = torch.cat([x, rows], 1)
    return torch.nn.functional.scaled_dot_product_attention(rows, keys, keys)


def test_no_size_that_follows_is_called_as_the_lengths_that_a_run_says():
    read = lc.from_module(Of(registers), {"x": "float B N 6"})
    for length in (2, 5, 8):
        number = lc.from_module(Of(registers), {"x": f"float 2 {length} 6"})
        assert lc.cost(read, B=2, N=length).total == lc.cost(number).total
    text = "rows(X; W) -> Y\nfollows: M=N+3\nsizes: d=4\nY[B M d] = X[B N=(M) d] W[d]"
    followed, given = lc.layer(text), lc.layer(text.replace("follows: M=N+3\n", ""))
    assert (
        lc.cost(followed, B=2, N=5).total == lc.cost(given, B=2, N=5, M=8).total != lc.cost(given, B=2, N=5, M=5).total
    )


def contrast(count):
    def loss(x):
        scores = x @ x.T
        places = torch.arange(count(scores))
        return torch.nn.functional.cross_entropy(scores, places) + torch.cat([x[: count(x)], x]).sum()

    return Of(loss)


def test_a_length_that_code_makes_a_number_of_stays_open():
    symbolic = lc.from_module(contrast(lambda x: x.shape[0]), {"x": "float B 6"})
    fixed = lc.from_module(contrast(len), {"x": "float B 6"})
    assert fixed.text == symbolic.text
    assert "follows: n=2*B" in fixed.text
    number = lc.from_module(contrast(len), {"x": "float 6 6"})
    assert lc.cost(fixed, B=6).total == lc.cost(number).total


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.stack([x[:, i].sin() for i in range(len(x[0]))]),
        lambda x: x / math.sqrt(len(x[0])),
        lambda x: x.sin() if len(x[0]) > 50 else x,
    ],
)
def test_what_a_length_decides_besides_is_refused(function):
    with pytest.raises(lc.InputError, match=r"M symbolic: its code converts it to a number.*; write a number"):
        lc.from_module(Of(function), {"x": "float B M 6"})


class Ends(torch.nn.Module):
    """Parts of a join whose bounds are counted from its end, as those of the text in HunyuanVideo of diffusers."""

    def forward(self, x, y):
        both, length = torch.cat([x, y], 1), y.shape[1]
        return both[:, -length:].sin(), both[:, :-length].cos(), both[:, 1 - length :].exp(), both[:, -length].tanh()


def test_places_that_open_sizes_count_from_the_end():
    def given(rows, first, second):
        return torch.randn(rows, first, 6, requires_grad=True), torch.randn(rows, second, 6, requires_grad=True)

    read = read_module(Ends(), given(2, 5, 3), {"x": "B M 6", "y": "B N 6"})
    for sizes in ((3, 4, 7), (4, 4, 4)):
        apart = parity(Ends(), given(*sizes), read)
        assert max(apart.value, apart.gradient) < 1e-12


class Strides(torch.nn.Module):
    """Pads to whole steps of a stride that a buffer holds, as EnCodec of transformers does, and counts its batches."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv1d(2, 4, 3, stride=2), torch.nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("stride", torch.tensor(2))

    def forward(self, x):
        length = x.shape[-1]
        steps = torch.ceil((length - 3) / self.stride).to(torch.int64)
        missing = steps * self.stride + 3 - length
        return self.norm(self.convolution(torch.nn.functional.pad(x, (0, missing)) if missing > 0 else x))


@pytest.mark.parametrize("length", [8, 9])
def test_a_whole_number_in_a_buffer_is_known(length):
    module, given = Strides(), (torch.randn(3, 2, length),)
    read = read_module(module, given, {"x": f"B 2 {length}"})
    apart = parity(module, (torch.randn(4, 2, length),), read)
    assert max(apart.value, apart.gradient, apart.module) < 1e-5
    assert products(module, given, read).equal
    with torch.device("meta"):
        unknown = Strides()
    with pytest.raises(lc.InputError, match=r"`.*if missing > 0.*` depends on values"):
        lc.from_module(unknown, {"x": "float B 2 9"})


class Positions(torch.nn.Module):
    """Learned positions, from the third on: 18 of 20 rows are there for a sequence."""

    def __init__(self):
        super().__init__()
        self.rows, self.places = torch.nn.Embedding(20, 6), torch.nn.Linear(6, 6)

    def forward(self, x):
        return self.places(x + self.rows(torch.arange(2, 2 + x.shape[1])))


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("module", "taken", "refused", "message"),
    [
        (Positions(), 18, 19, "M is 19, and Positions takes at most 18"),
        (Of(lambda x: x.sin() if x.shape[1] > 50 else x.cos()), 50, 51, "M is 51, and Of takes at most 50"),
        (Of(lambda x: x + torch.ones(16, 6)[: x.shape[1]]), 16, 17, "M is 17, and Of takes at most 16"),
        (Of(lambda x: x[:, -4:].sin()), 4, 3, "M is 3, and Of takes at least 4"),
    ],
)
def test_sizes_for_which_code_does_something_else_are_refused(module, taken, refused, message):
    read = lc.from_module(module, {"x": "float B M 6"})
    number = lc.from_module(module, {"x": f"float 2 {taken} 6"})
    assert lc.cost(read, B=2, M=taken).total == lc.cost(number).total
    for asked in (lc.cost, lc.memory, partial(lc.sweep, procedure="bp")):
        with pytest.raises(lc.InputError, match=message):
            asked(read, B=2, M=refused)
    assert lc.layer(read.text).limits == read.limits != {}


class Chunks(torch.nn.Module):
    """A loop over chunks of 8 rows, the last of them filled up, as gated delta rules have it."""

    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(6, 6)

    def forward(self, x):
        rows, length, width = x.shape
        chunks = torch.nn.functional.pad(x, (0, 0, 0, -length % 8)).reshape(rows, -1, 8, width)
        states, state = [], x.new_zeros(rows, 8, width)
        for place in range(chunks.shape[1]):
            state = self.inside(state + chunks[:, place]).tanh()
            states.append(state)
        return torch.stack(states, 1).reshape(rows, -1, width)[:, :length]


@pytest.mark.parametrize(("length", "least", "most"), [(5, 1, 8), (20, 17, 24)])
def test_a_loop_over_chunks_is_read_for_the_lengths_that_have_as_many(length, least, most):
    torch.manual_seed(0)
    module = Chunks()
    read = read_module(module, (torch.randn(3, length, 6),), {"x": "B M 6"})
    limit = lc.layer(read.text).limits["M"]
    assert (limit.least, limit.most) == (least, most)
    assert "follows" not in read.text
    for other in (least, length + 1, most):
        inputs = (torch.randn(2, other, 6),)
        apart = parity(module, inputs, read)
        assert max(apart.value, apart.gradient) < 1e-13
        assert products(module, inputs, read).equal


def test_the_less_of_two_sizes_that_are_one_number_is_that():
    """As SEW has it: a pool's places and those of a convolution beside it, of which the lesser number is taken."""
    sympy = pytest.importorskip("sympy")
    from torch.utils._sympy.functions import FloorDiv, Min

    length = sympy.Symbol("M", integer=True, positive=True)
    frames = FloorDiv(length, 4)
    pooled, halved = FloorDiv(frames - 7, 2) + 1, FloorDiv(frames - 5, 2)
    least = simple(Min(pooled, halved))
    assert least in (pooled, halved)
    assert [int(least.subs(length, size)) for size in (28, 33, 46)] == [(size // 4 - 5) // 2 for size in (28, 33, 46)]
    assert simple(Min(pooled, halved + 1)) == pooled
    assert simple(Min(FloorDiv(length, 2), FloorDiv(length, 3))).has(Min)


def test_a_view_has_the_sizes_that_it_was_asked_for():
    def inside(x):
        rows = torch.cat([x, x[:, : -x.shape[1] % 4]], 1)
        return rows.view(x.shape[0], -1, 4, 6).softmax(2)

    module = Of(inside)
    read = read_module(module, (torch.randn(3, 7, 6),), {"x": "B M 6"})
    assert all("//((" not in size for size in map(str, read.derived.values()))
    apart = parity(module, (torch.randn(2, 6, 6),), read)
    assert max(apart.value, apart.gradient) < 1e-13


def test_limits_of_a_table_are_checked_when_it_is_read():
    text = "rows(X; W) -> Y\nsizes: d=4\nlimits: {}\nY[B M d] = X[B M d] W[d]"
    layer = lc.layer(text.format("M<=8 M >= 2 B<=3"))
    assert {letter: limit.text(letter) for letter, limit in layer.limits.items()} == {"M": "M>=2 M<=8", "B": "B<=3"}
    with pytest.raises(lc.InputError, match="B is 4, and rows takes at most 3"):
        lc.cost(layer, B=4, M=8)
    for wrong, message in (("M<8", "as in `limits: M<=1024`"), ("M<=2 M>=3", "no M is within"), ("K<=2", "names K")):
        with pytest.raises(lc.NotationError, match=message):
            lc.layer(text.format(wrong))


class Selected(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(4, 6)

    def forward(self, x, mask):
        (places,) = torch.where(mask)
        return torch.cat([self.inside(x[places]), self.inside(x)])


def test_sizes_that_values_decide_are_named_and_taken_of_one_run():
    inputs = {"x": torch.randn(5, 4), "mask": torch.tensor([True, False, True, True, False])}
    read = lc.from_module(Selected(), inputs)
    (size,) = read.undecided
    with pytest.raises(lc.InputError, match=f"values of an input of Selected decide {size}: .*as_run=True"):
        lc.cost(read)
    assert lc.cost(lc.from_module(Selected(), inputs, as_run=True)).total == lc.cost(read, **{size: 3}).total
    with pytest.raises(lc.NotationError, match="`undecided:` names m, which is not the size of an axis"):
        lc.layer(f"{read.text}\nundecided: m")


class ByMask(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, kind):
        result = torch.zeros_like(x)
        for number, part in enumerate(self.parts):
            result[kind == number] = part(x[kind == number])
        return result


def test_what_a_mask_selects_in_one_run_is_read():
    module, inputs = ByMask(), {"x": torch.randn(2, 3, 4), "kind": torch.tensor([[0, 1, 0], [1, 1, 2]])}
    with pytest.raises(lc.InputError, match=r"by a mask cannot be read.*; its size depends on values: --as-run"):
        lc.from_module(module, inputs)
    run = straight(module, inputs)
    apart = parity(run, inputs, read_module(run, inputs))
    assert max(apart.value, apart.gradient) < 1e-12


def halved(x):
    return x.view(x.shape[0], x.shape[1] // 2, -1)


HALVES = {
    "the rest is left to the view": lambda x: halved(x).sin(),
    "a view of such a view": lambda x: halved(halved(x)).sin(),
    "two chunks that are multiplied": lambda x: torch.mul(*x.chunk(2, 1)),
}
REMAINING = {
    "from the middle on": lambda x: x[:, x.shape[1] // 2 :].sin(),
    "the place in the middle": lambda x: x[:, x.shape[1] // 2].sin(),
    "what remains of fours": lambda x: x[:, x.shape[1] % 4 :].sin(),
    "the larger half": lambda x: x[:, : math.ceil(x.shape[1] / 2)].sin(),
}


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("function", sampled(HALVES.values(), 2), ids=HALVES.keys())
def test_whole_parts_of_open_sizes_without_a_rest_are_quotients(function):
    module = Of(function)
    read = read_module(module, (torch.randn(2, 8, 6, requires_grad=True),), {"x": "B M 6"})
    for sizes in ((2, 8), (3, 12), (4, 4)):
        apart = parity(module, (torch.randn(*sizes, 6, requires_grad=True),), read)
        assert max(apart.value, apart.gradient) < 1e-12
    with pytest.raises(lc.InputError, match=r"M 7 is not a multiple of [24]$"):
        lc.cost(lc.layer(read.text), B=2, M=7)


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("function", sampled(REMAINING.values(), 2), ids=REMAINING.keys())
def test_whole_parts_of_open_sizes_with_a_rest_are_places_and_sizes(function):
    module = Of(function)
    read = read_module(module, (torch.randn(2, 8, 6, requires_grad=True),), {"x": "B M 6"})
    for sizes in ((2, 8), (3, 7)):
        given = (torch.randn(*sizes, 6, requires_grad=True),)
        apart = parity(module, given, read)
        assert max(apart.value, apart.gradient) < 1e-12
        cost = lc.cost(lc.layer(read.text), B=sizes[0], M=sizes[1], price_book="matmul")
        assert cost.total == lc.cost(lc.layer(read_module(module, given).text), price_book="matmul").total


class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.small(x) if x.sum() < 1e9 else self.large(x)


def test_a_run_stores_what_it_does_not_read():
    model = lc.from_module(Halves(), {"x": "float 2 4"}, as_run=True)
    step = lc.cost(model, price_book="matmul")
    assert step.parameters == 30
    assert step.total.flops == 2 * 2 * 2 * 4 * 3


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.repeat(1, 2, 1).mean(),
        lambda x: x.repeat(1, 2, 1).sum(),
        lambda x: x.repeat_interleave(3, 1).square().mean(1),
        lambda x: x[:, None].expand(-1, 4, -1, -1).sum(1) + x,
        lambda x: (x @ x.mT)[..., None].expand(-1, -1, -1, 3).mean((1, 2, 3)),
    ],
    ids=["mean", "sum", "mean of turns", "sum of copies", "mean of squares"],
)
def test_what_is_repeated_and_summed_is_of_no_axis(function):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), Of(function))
    read = read_module(module, (torch.randn(2, 5, 6),), {"input": "B M 6"})
    for sizes in ((2, 5), (6, 6), (3, 1)):
        x = torch.randn(*sizes, 6)
        apart = parity(module, (x,), read)
        assert max(apart.value, apart.gradient) < 1e-12
        assert products(module, (x,), read).equal


class NextTokens(torch.nn.Module):
    """A loss of each position against the next token."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11)

    def forward(self, tokens, targets):
        scores = self.head(self.embedding(tokens))[:, :-1]
        return torch.nn.functional.cross_entropy(scores.reshape(-1, 11), targets.reshape(-1))


class TargetsFirst(NextTokens):
    def forward(self, targets, tokens):
        return super().forward(tokens, targets)


class Pairs(torch.nn.Module):
    """Rows against two of their projections, and rows of a length of their own."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)

    def forward(self, x, both, more):
        twice = torch.cat([self.project(x), self.project(x)])
        return (twice * both).sum() + self.project(more).sum()


WITH_ARITHMETIC = {
    "one less": (NextTokens, {"tokens": "int B M", "targets": "int B M-1"}, {"tokens": (3, 6), "targets": (3, 5)}),
    "one less first": (
        TargetsFirst,
        {"targets": "int B M-1", "tokens": "int B M"},
        {"tokens": (3, 6), "targets": (3, 5)},
    ),
    "a multiple": (
        Pairs,
        {"x": "float B 4", "both": "float 2*B 4", "more": "float 3*B+2 4"},
        {"x": (3, 4), "both": (6, 4), "more": (11, 4)},
    ),
}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("name", WITH_ARITHMETIC)
def test_letters_with_arithmetic_cost_what_numbers_cost(name):
    kind, open_inputs, shapes = WITH_ARITHMETIC[name]
    inputs = {key: f"{text.partition(' ')[0]} {' '.join(map(str, shapes[key]))}" for key, text in open_inputs.items()}
    sizes = {"B": 3} | ({"M": 6} if kind is not Pairs else {})
    for book in ("run", "matmul"):
        one = lc.cost(lc.from_module(kind(), open_inputs), price_book=book, **sizes)
        other = lc.cost(lc.from_module(kind(), inputs), price_book=book)
        assert one.total == other.total
    kinds = {key: torch.long if "int" in text else torch.float32 for key, text in open_inputs.items()}
    with torch.no_grad():  # the sizes are those that a call accepts
        kind()(**{key: torch.zeros(shape, dtype=kinds[key]) for key, shape in shapes.items()})


def test_example_tensors_have_letters_with_arithmetic():
    given = {"tokens": torch.zeros(3, 6, dtype=torch.long), "targets": torch.zeros(3, 5, dtype=torch.long)}
    symbols = {"tokens": "B M", "targets": "B M-1"}
    texts = lc.from_module(NextTokens(), {"tokens": "int B M", "targets": "int B M-1"})
    assert lc.from_module(NextTokens(), given, symbols).table == texts.table


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"tokens": "int B 6", "targets": "int B M-1"}, "the size M-1 needs an input with the size M"),
        ({"tokens": "int B M", "targets": "int B M/2"}, "is not a size"),
        ({"tokens": "int B M", "targets": "int B M-1=5"}, "only a letter has an example"),
    ],
)
def test_wrong_arithmetic_of_sizes_is_refused(inputs, message):
    with pytest.raises(lc.InputError, match=message):
        lc.from_module(NextTokens(), inputs)


def test_example_tensors_that_contradict_arithmetic_are_refused():
    given = {"tokens": torch.zeros(3, 6, dtype=torch.long), "targets": torch.zeros(3, 4, dtype=torch.long)}
    with pytest.raises(lc.InputError, match="M has two sizes: 6, and 5 in targets"):
        lc.from_module(NextTokens(), given, {"tokens": "B M", "targets": "B M-1"})
