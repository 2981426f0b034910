"""What a module's results are in its table: losses, joins, bags, and where a refusal points."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional

import learncost as lc
from learncost.importer.pipeline import ImportObserver, ImportOptions, table_of
from learncost.importer.replaced import temporal_classification
from learncost.verification.imported import products
from sampling import sampled


class Routed(nn.Module):
    """A result, and a number beside it: one to which the result leads, or not."""

    def __init__(self, leads):
        super().__init__()
        self.first, self.second, self.leads = nn.Linear(4, 4), nn.Linear(4, 4), leads

    def forward(self, x):
        y = self.first(x)
        return y, (y if self.leads else self.second(x)).square().mean()


@pytest.mark.parametrize("leads", [True, False])
def test_a_number_is_the_loss_where_all_results_lead_to_it(leads):
    module, given = Routed(leads), (torch.randn(3, 4),)
    read = read_module(module, given)
    assert list(lc.layer(read.text).table.outputs) == ["loss"] if leads else len(read.outputs) == 2
    assert parity(module, given, read).gradient < 1e-10
    assert products(module, given, read).equal


class Cached(Routed):
    """A loss, and beside it an object that PyTorch does not know."""

    def forward(self, x):
        y, loss = super().forward(x)
        return {"loss": loss, "cache": Routed(y)}


def test_an_object_beside_the_results_is_none_of_them():
    module, given = Cached(leads=True), (torch.randn(3, 4),)
    read = read_module(module, given)
    assert list(lc.layer(read.text).table.outputs) == ["loss"]
    assert parity(module, given, read).gradient < 1e-10


class Labelled(nn.Module):
    """Scores, and beside them what no table has as a result: a label, a mask; an input handed back is no result."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x, places):
        y = self.scores(x)
        return {"label": y.argmax(-1), "y": y, "positive": y > 0, "places": places, "next": places + 1}


def test_integers_and_booleans_among_the_results_are_left_out_by_name():
    notices = []
    given = {"x": torch.randn(2, 4), "places": torch.arange(2)}
    text, _ = table_of(Labelled(), given, "Labelled", ImportOptions(), ImportObserver(say=notices.append))
    left_out = "the table has no lines for output 1 (int64), 3 (bool), 5 (int64) of 5"
    assert notices == [f"Labelled: {left_out}"]
    assert f"% T{left_out[1:]}." in text
    assert list(lc.layer(text).table.outputs) == ["linear"]


class Silent(Routed):
    """Two results that are equal as long as nothing was learned, as all of ControlNet's are."""

    def forward(self, x):
        return self.first(x), self.second(x.tanh())


def test_of_equal_results_each_has_the_gradient_of_its_own():
    module, given = Silent(leads=False), (torch.randn(3, 4),)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    assert parity(module, given, read_module(module, given)).module < 1e-10


class Joined(nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y, x], 1).tanh()


def test_a_join_costs_as_much_at_fixed_sizes_as_at_open_ones():
    given = (torch.randn(2, 3, requires_grad=True), torch.randn(2, 4, requires_grad=True))
    fixed, opened = read_module(Joined(), given), read_module(Joined(), given, {"x": "B M", "y": "B N"})
    costs = [lc.cost(lc.layer(read.text), **sizes) for read, sizes in ((fixed, {}), (opened, {"B": 2, "M": 3, "N": 4}))]
    forward = [cost.macro_operations["forward"][1].flops for cost in costs]
    assert forward == [20, 20]  # a hyperbolic tangent for each of 2 by 10, and no sum


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_of_one_length(mode):
    module, given = nn.EmbeddingBag(7, 3, mode=mode), (torch.randint(0, 7, (4, 5)),)
    found = parity(module, given, read_module(module, given))
    assert max(found.value, found.gradient) < 1e-12
    if mode == "mean":
        opened = lc.layer(read_module(module, given, {"input": "B M"}).text)
        assert opened.table.axes["targets" if "targets" in opened.table.inputs else opened.table.inputs[0]] == (
            "B",
            "M",
        )


class Made(nn.Module):
    """What a function makes of a linear layer's result."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self.linear(x))


def diagonal_times_three(y):
    changed = y.clone()
    changed.diagonal(1).mul_(3)
    return changed


def enlarged_with_its_norm(x):
    norm = functional.group_norm(x, 2)
    return functional.interpolate(x, scale_factor=2) + functional.interpolate(norm, scale_factor=2).tanh()


def steps_along_a_loss(y):
    """Two steps of a layer on half of the rows, and what it then makes of the others, as MAML does."""
    weights = {"weight": y[:3, :3].tanh(), "bias": y[3, :3]}
    layer = nn.Linear(3, 3)
    for _ in range(2):
        loss = functional.mse_loss(torch.func.functional_call(layer, weights, (y[:2, 3:],)), y[2:, :3])
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: each - 0.1 * by for (name, each), by in zip(weights.items(), gradients, strict=True)}
    return torch.func.functional_call(layer, weights, (y[2:, 3:],))


def with_low_frequencies(y):
    """Written into a part of a complex tensor, as Fourier neural operators do."""
    whole = torch.zeros(4, 4, dtype=torch.cfloat)
    whole[:, :2] = torch.fft.rfft(y)[:, :2]
    return torch.fft.irfft(whole)


FUNCTIONS = {
    "x log(1 + z)": lambda y: torch.special.xlog1py(torch.relu(y), y.exp()),
    "codes of a tensor": lambda y: torch.fake_quantize_per_tensor_affine(10 * y, 0.1, 3, -10, 12),
    "codes by channel": lambda y: torch.fake_quantize_per_channel_affine(
        10 * y, torch.arange(1, 7) / 10, torch.arange(6, dtype=torch.int32), 1, -8, 7
    ),
    "an enlargement of one value": lambda y: nn.functional.interpolate(
        y[:1, :1].view(1, 1, 1, 1).expand(1, 2, 4, 4), scale_factor=2, mode="bilinear"
    ),
    "an enlargement of what a norm has in groups": lambda y: enlarged_with_its_norm(y[:, :, None, None]),
    "each place repeated once": lambda y: y.view(2, 2, 2, 3).repeat_interleave(1, -1).transpose(1, 2).flatten(2),
    "an uneven pool of one value": lambda y: nn.functional.adaptive_avg_pool2d(
        y[:1, :1].view(1, 1, 1, 1).expand(1, 2, 4, 5), (3, 3)
    ),
    "bytes": lambda y: (y.sigmoid() * 255).round().byte() / 255.0 + y,
    "whole numbers that places are computed from": lambda y: y.gather(1, (y.abs() * 2).long().clamp(max=5)),
    "whether there is any": lambda y: y.relu().bool() * y,
    "a diagonal that changes in place": lambda y: torch.cat([y.clone().fill_diagonal_(2.0), diagonal_times_three(y)]),
    "products so far, and of all": lambda y: (q := y.sigmoid()).cumprod(1) + (1 - q).cumprod(0) + q.prod(1, True),
    "numbers by their strides": lambda y: y.as_strided((3, 4), (7, 2), 1) * 2,
    "angles of real numbers": lambda y: y + torch.angle(y),
    "the negated view of an imaginary part": lambda y: torch.view_as_complex(y.view(4, 3, 2)).conj().imag.exp(),
    "eight corners": lambda y: functional.grid_sample(
        y.view(2, 1, 2, 3, 2), 1.5 * y.view(2, 4, 1, 1, 3), padding_mode="reflection", align_corners=False
    ),
    "a nearest place in space": lambda y: functional.grid_sample(
        y.view(2, 1, 2, 3, 2), y.view(2, 4, 1, 1, 3).detach(), mode="nearest", align_corners=True
    ),
    "labels in time": lambda y: functional.ctc_loss(
        y.view(4, 1, 6).expand(4, 3, 6).log_softmax(-1),
        torch.tensor([[1, 1], [3, 0], [2, 5]]),
        torch.tensor([4, 3, 4]),
        torch.tensor([2, 0, 2]),
        reduction="none",
    ),
    "labels one after the other, of which some do not fit": lambda y: functional.ctc_loss(
        y.view(2, 2, 6).log_softmax(-1), torch.tensor([1, 1, 4]), (2, 2), (2, 1), blank=5, zero_infinity=True
    ),
    "steps along a loss, of a weight and a bias": steps_along_a_loss,
    "a part of complex numbers that is written": with_low_frequencies,
    "a gradient in a forward pass": lambda y: torch.autograd.grad((y**3).sum(), y, create_graph=True)[0],
}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("function", sampled(FUNCTIONS.values(), 4), ids=FUNCTIONS.keys())
def test_operators_that_choose_round_and_spread(function):
    module, given = Made(function), (torch.randn(4, 6),)
    apart = parity(module, given, read_module(module, given))
    assert max(apart.value, apart.gradient) < 1e-12
    assert apart.module < 1e-5


def test_switches_of_a_fake_quantization_are_known():
    """Which are buffers of one number: whether it observes, and whether it quantizes."""
    module, given = nn.Sequential(nn.Linear(4, 4), torch.ao.quantization.FakeQuantize()), (torch.randn(3, 4),)
    module[1].disable_observer()
    found = parity(module, given, read_module(module, given))
    assert max(found.value, found.gradient) < 1e-12


class Placed(nn.Module):
    """Two linear layers: the second says places of the first one's result, and has no gradient."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.first(x), self.second(x))


PLACES = {
    "the largest": lambda y, z: y.gather(1, z.argmax(1, keepdim=True)),
    "the smallest of all": lambda y, z: y.flatten().gather(0, z.argmin().view(1)),
    "in order": lambda y, z: y.gather(1, z.argsort(1, descending=True)),
    "one of some": lambda y, z: y * nn.functional.one_hot(z.argmax(1), 4),
    "whole numbers": lambda y, z: y[(2 * z[:, 0].sigmoid()).long()],
    "intervals": lambda y, z: y[torch.bucketize(z[:, 0].contiguous(), torch.tensor([-0.1, 0.1]))],
    "no numbers": lambda y, z: y.masked_fill(z.isnan(), 0.0),
    "the largest two": lambda y, z: y.gather(1, z.argsort(-1, descending=True)[..., :2]),
    "whether it holds": lambda y, z: y[(z[:, 0] > 0).long()],
    "one of two places": lambda y, z: y[torch.where(z[:, 0] > 0, 2, z[:, :3].argmax(1))],
    "how many hold, as a factor and as places": lambda y, z: (
        (n := (z > 0).sum(1, keepdim=True)) * y + y.gather(1, n.clamp(max=3))
    ),
    "bytes": lambda y, z: y * ((200 * z.sigmoid()).byte() / 255.0),
}


@pytest.mark.parametrize("function", sampled(PLACES.values(), 4), ids=PLACES.keys())
def test_products_that_say_places_alone_are_counted(function):
    module, given = Placed(function), (torch.randn(3, 4),)
    read = read_module(module, given)
    apart = parity(module, given, read)
    assert max(apart.value, apart.gradient) < 1e-12
    assert products(module, given, read).equal


TURNED = {
    "a transposed convolution": lambda y: nn.functional.conv_transpose1d(y, torch.ones(2, 3, 3), stride=2),
    "rows": lambda y: nn.functional.embedding(torch.tensor([0, 3, 2]), y.flatten(0, 1)),
}


@pytest.mark.parametrize("function", sampled(TURNED.values(), 4), ids=TURNED.keys())
def test_a_side_that_several_axes_are(function):
    module, given = Made(lambda y: function(y.flatten(2))), (torch.randn(2, 2, 3, 6),)
    apart = parity(module, given, read_module(module, given))
    assert max(apart.value, apart.gradient) < 1e-12


def test_sizes_that_follow_from_open_ones_are_counted_by_these():
    module, given = Made(lambda y: torch.cat([y, y[:, :1]], 1)), (torch.randn(2, 3, 6),)
    assert products(module, given, read_module(module, given, {"x": "B M 6"})).equal


def test_what_is_no_number_is_refused_with_its_line():
    with pytest.raises(lc.InputError, match=r"nan, which the notation cannot express, .*test_imported_results"):
        read_module(Made(lambda y: torch.where(y > 0, y, float("nan"))), (torch.randn(4, 6),))


def test_a_refusal_points_at_the_line_of_the_user():
    module = nn.Sequential(nn.Embedding(7, 3, scale_grad_by_freq=True))

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = module

        def forward(self, places):
            return self.rows(places)

    with pytest.raises(
        lc.InputError, match=r"an embedding with scale_grad_by_freq .* in rows\.0 .*test_imported_results"
    ):
        read_module(Mine(), (torch.randint(0, 7, (4, 5)),))


class Ends(nn.Module):
    """A function of a parameter that is at the ends of what the function takes."""

    def __init__(self, function, values):
        super().__init__()
        self.values, self.function = nn.Parameter(torch.tensor(values)), function

    def forward(self, x):
        return self.function(self.values * x)


ANSWERS = torch.tensor([1.0, 0.0, 0.25, 1.0, 0.0, 0.5]).expand(2, 6)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (lambda x: functional.binary_cross_entropy(x, ANSWERS.to(x)), [0.0, 1.0, 0.0, 1e-13, 0.3, 1.0]),
        (
            lambda x: functional.binary_cross_entropy(torch.sigmoid(x), ANSWERS.to(x)),
            [-900.0, 900, 90, -30, 0, -90],
        ),
        (lambda x: torch.xlogy(x, x + 0.5), [0.0, 1.0, 0.0, 2.0, 0.3, 1.0]),
        (lambda x: torch.special.xlog1py(x, x + 0.5), [0.0, 1.0, 0.0, 2.0, 0.3, 1.0]),
    ],
)
def test_logarithms_at_their_ends_have_the_values_and_slopes_of_pytorch(function, values):
    module, given = Ends(function, values).double(), (torch.ones(2, 6, dtype=torch.float64),)
    found = parity(module, given, read_module(module, given))
    assert max(found.value, found.gradient) < 1e-12


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.cosine_similarity(x, torch.arange(1.0, 7.0).to(x), dim=-1),
        lambda x: torch.cdist(torch.eye(4, 6).to(x), x, p=3.0),
    ],
)
def test_what_is_made_in_a_module_is_compared_with_what_learns(function):
    module, given = (
        Ends(function, [0.5, -1.0, 2.0, 0.25, 1.5, -0.75]).double(),
        (torch.ones(2, 6, dtype=torch.float64),),
    )
    found = parity(module, given, read_module(module, given))
    assert max(found.value, found.gradient) < 1e-12


class Spectral(nn.Module):
    """Complex weights: a matrix read twice, a bias that does not learn, and a row of one place."""

    def __init__(self):
        super().__init__()
        self.matrix, self.row = (nn.Parameter(torch.randn(rows, 4, dtype=torch.cfloat)) for rows in (6, 1))
        self.bias = nn.Parameter(torch.randn(4, dtype=torch.cfloat), requires_grad=False)

    def forward(self, x):
        z = (x.to(torch.cfloat) @ self.matrix + self.bias) * self.row
        return (z @ self.matrix.mT).real + z.abs().sum()


def test_complex_weights_are_pairs_of_numbers():
    torch.manual_seed(1)
    module, given = nn.Sequential(*(Spectral() for _ in range(3))), (torch.randn(5, 6),)
    read = read_module(module, given, {"input": "B 6"})
    found = parity(module, given, read)
    assert max(found.value, found.gradient) < 1e-12
    assert lc.cost(lc.layer(read.text), B=5).parameters == found.parameters == 3 * 2 * (24 + 4 + 4)


class Masked(nn.Module):
    """Attention behind a mask that is made of a float input: it says what holds, and is not added."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, seen):
        rows, length = x.shape[:2]
        hidden = torch.arange(length) >= seen.sum(1)[:, None]
        keep = torch.ones(rows, length, dtype=torch.bool).masked_fill(hidden, False)
        y = self.linear(x)[:, None]
        return functional.scaled_dot_product_attention(y, y, y, keep[:, None, None]), ~keep


@pytest.mark.parametrize("symbols", [{}, {"x": "B M 6", "seen": "B M"}], ids=["numbers", "letters"])
def test_a_mask_that_lines_make_hides(symbols):
    torch.manual_seed(0)
    module, given = Masked(), (torch.randn(2, 5, 6), torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 0]]))
    found = parity(module, given, read_module(module, given, symbols))
    assert max(found.value, found.gradient) < 1e-12


class ByParts(nn.Module):
    """Rows at places that are chosen in two halves and taken apart, as the experts of Doge of transformers."""

    def __init__(self):
        super().__init__()
        self.router, self.rows = nn.Linear(6, 8), nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        share, place = self.router(x).view(*x.shape[:-1], 2, 4).topk(2, -1)
        one, other = place.unbind(-2)
        first, _ = place.split(1, -2)
        both = (one + other)[..., None]
        return self.rows[one] * share[..., 0, :, None], self.rows[other] + both, self.rows[first]


def test_places_that_are_chosen_are_taken_apart():
    torch.manual_seed(0)
    module = ByParts()
    read = read_module(module, (torch.randn(2, 5, 6),), {"x": "B M 6"})
    found = parity(module, (torch.randn(4, 4, 6),), read)
    assert max(found.value, found.gradient) < 1e-12


@pytest.mark.parametrize("labels", [[[2, 0]], [[0, 0]]])
def test_labels_that_are_blanks_have_the_gradient_of_the_loss(labels):
    def loss(x, function):
        return function(x.log_softmax(-1), torch.tensor(labels), torch.tensor([5]), torch.tensor([2]))

    x = torch.randn(5, 1, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(loss(x, temporal_classification), loss(x, functional.ctc_loss))
    assert torch.autograd.gradcheck(lambda y: loss(y, temporal_classification), x)
