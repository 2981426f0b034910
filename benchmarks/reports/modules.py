"""The modules of the reports, written anew and small: a function without arguments builds each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Calls(nn.Module):
    """Modules by name, and a function of them and of the inputs."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """What the function makes of them."""
        return self.function(self, *args, **inputs)


def strided_transposed() -> nn.Module:
    """A transposed convolution that makes each side twice as long."""
    return nn.ConvTranspose2d(12, 24, 2, stride=2)


class HeadsBehind(nn.Module):
    """Attention of arrays in the order batch, position, head, width."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Moves the heads to the front, and back."""
        heads = (each.transpose(1, 2) for each in (query, key, value))
        return functional.scaled_dot_product_attention(*heads).transpose(1, 2)


heads_behind = HeadsBehind


class GroupedQueries(nn.Module):
    """Attention whose heads of keys and values serve several of queries."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """PyTorch repeats them."""
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


grouped_queries = GroupedQueries


class Attention(nn.Module):
    """Attention and nothing else."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """By PyTorch's own function."""
        return functional.scaled_dot_product_attention(query, key, value)


two_widths = attention_alone = Attention


@torch.library.custom_op("reports::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """An operation of one's own."""
    return x + x


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda context, gradient: gradient + gradient)


def own_operator() -> nn.Module:
    """A layer, and an operator that nobody else knows."""
    return Calls(lambda own, x: torch.ops.reports.doubled(own.layer(x)), layer=nn.Linear(8, 8))


class ThreeTransposed(nn.Module):
    """Transposed convolutions: plain, depthwise and in three groups."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1)
        self.depthwise = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=4)
        self.grouped = nn.ConvTranspose2d(6, 6, 2, stride=2, groups=3)

    def forward(self, first: Tensor, second: Tensor, third: Tensor) -> tuple[Tensor, ...]:
        """Each of its own input."""
        return self.plain(first), self.depthwise(second), self.grouped(third)


three_transposed = ThreeTransposed


def recurrent() -> nn.Module:
    """A recurrent network of two layers."""
    return nn.RNN(6, 8, 2)


class CellByCell(nn.Module):
    """The recurrence of cells as a loop: what a layer of torch computes, operation by operation."""

    def __init__(self, *cells: nn.Module, batch_first: bool = False) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)
        self.steps = 1 if batch_first else 0

    def forward(self, x: Tensor) -> Tensor:
        """Layer after layer, step after step."""
        steps = list(x.unbind(self.steps))
        for cell in self.cells:
            state, made = None, []
            for step in steps:
                state = cell(step, state)
                made.append(state[0] if isinstance(state, tuple) else state)
            steps = made
        return torch.stack(steps, self.steps)


def recurrent_loop() -> nn.Module:
    """`recurrent` as a loop."""
    return CellByCell(nn.RNNCell(6, 8), nn.RNNCell(8, 8))


class ThreeParents(nn.Module):
    """Three modules that hold one and the same linear layer, each for a third of the input."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(100, 100, bias=False)
        self.parents = nn.ModuleList(nn.Sequential(layer) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Every parent its part."""
        parts = x.split(100, -1)
        return torch.cat([parent(part) for parent, part in zip(self.parents, parts, strict=True)], -1)


three_parents = ThreeParents


class LooseProducts(nn.Module):
    """Products by functions of torch, none by a module."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(8, 7))
        self.other = nn.Parameter(torch.randn(7, 9))
        self.third = nn.Parameter(torch.randn(9, 4))
        self.stack = nn.Parameter(torch.randn(5, 8, 3))
        self.sum = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Six ways to write one."""
        added = torch.addbmm(self.sum, x, self.stack)
        contracted = torch.tensordot(x, self.one, ([2], [0]))
        chained = torch.linalg.multi_dot((x[0], self.one, self.other, self.third))
        plain = torch.mm(x[1], self.one)
        inner = torch.inner(x[2], self.one.t())
        summed = torch.einsum("bmd,df,fg->bmg", x, self.one, self.other)
        return added, contracted, chained, plain, inner, summed


loose_products = LooseProducts


def long_short() -> nn.Module:
    """An LSTM of one layer."""
    return nn.LSTM(10, 20)


def long_short_cells() -> nn.Module:
    """`long_short` as a loop."""
    return CellByCell(nn.LSTMCell(10, 20))


class ContinuousTime(nn.Module):
    """A network whose state moves towards a sigmoid of itself, by a tenth of the way at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12))

    def forward(self, current: Tensor) -> Tensor:
        """From a current that is given for every step."""
        state = current[0]
        for step in current.unbind(0):
            state = state + 0.1 * (torch.sigmoid(state @ self.weight + step) - state)
        return state


continuous_time = ContinuousTime


def bilinear() -> nn.Module:
    """A bilinear layer."""
    return nn.Bilinear(20, 30, 40)


class TwoHalves(nn.Module):
    """A convolution, and two of twelve groups beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, bias=False)
        self.left, self.right = (nn.Conv2d(24, 12, 3, bias=False, groups=12) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Both halves read all channels."""
        x = self.first(x)
        return torch.cat([self.left(x), self.right(x)], 1)


two_halves = TwoHalves


def frozen_encoder() -> nn.Module:
    """An encoder that learns nothing."""
    layer = nn.TransformerEncoderLayer(512, 4, 512, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1).requires_grad_(False)


def never_called() -> nn.Module:
    """A layer that forward runs, one that it does not, and a parameter beside them."""
    module = Calls(lambda own, x: own.used(x), used=nn.Linear(6, 5), unused=nn.Linear(5, 4))
    module.beside = nn.Parameter(torch.zeros(3))
    return module


class ThreeTies(nn.Module):
    """An encoder and a decoder with one matrix for both embeddings and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(40, 16)
        self.write = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.write.weight = self.head.weight = self.read.weight
        self.encoder, self.decoder = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The mean of the source is added to each word of the target."""
        state = torch.tanh(self.encoder(self.read(source))).mean(1, keepdim=True)
        return self.head(torch.tanh(self.decoder(self.write(target)) + state))


three_ties = ThreeTies


class ReZero(nn.Sequential):
    """Residual blocks, each with a number that begins at zero."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*blocks)
        self.weights = nn.Parameter(torch.zeros(len(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        """Block after block."""
        for place, block in enumerate(self):
            x = x + self.weights[place] * block(x)
        return x


def rezero() -> nn.Module:
    """Two blocks of it."""
    return ReZero(nn.Linear(2, 2), nn.Linear(2, 2))


def words_to_words() -> nn.Module:
    """A language model with an LSTM of two layers."""
    return Calls(
        lambda own, x: own.head(own.layers(own.words(x))[0]),
        words=nn.Embedding(20, 300),
        layers=nn.LSTM(300, 512, 2, batch_first=True),
        head=nn.Linear(512, 20),
    )


def one_sequence() -> nn.Module:
    """An LSTM whose batch comes first."""
    return nn.LSTM(12, 128, batch_first=True)


def one_sequence_cells() -> nn.Module:
    """`one_sequence` as a loop."""
    return CellByCell(nn.LSTMCell(12, 128), batch_first=True)


class Packed(nn.Module):
    """Attention over four sequences of eight that lie in one row, under a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.projection, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.block_diag(*torch.ones(4, 8, 8)).bool())

    def forward(self, x: Tensor) -> Tensor:
        """Two heads of eight."""
        query, key, value = self.projection(x).view(1, 32, 3, 2, 8).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)
        return self.out(seen.transpose(1, 2).reshape(1, 32, 16))


packed = Packed


class Language(nn.Module):
    """The least language model: words, a layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        """How likely each sequence is, as a logarithm."""
        scores = self.head(torch.tanh(self.layer(self.words(tokens[:, :-1])))).log_softmax(-1)
        return scores.gather(-1, tokens[:, 1:, None]).sum((1, 2))


class Preferences(nn.Module):
    """The loss of DPO: how much more than a reference, which learns nothing, a policy prefers what was chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.reference = Language(), Language().requires_grad_(False)

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """A number."""
        margin = self.policy(chosen) - self.policy(rejected)
        with torch.no_grad():
            margin_before = self.reference(chosen) - self.reference(rejected)
        return -functional.logsigmoid(0.1 * (margin - margin_before)).mean()


preferences = Preferences


class PromptTuning(nn.Module):
    """A frozen block, before whose input stand twenty rows that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 11)
        self.requires_grad_(False)
        self.prompt = nn.Parameter(torch.randn(20, 16))

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores behind the prompt."""
        prompt = self.prompt.expand(tokens.shape[0], -1, -1)
        return self.head(self.block(torch.cat([prompt, self.words(tokens)], 1))[:, 20:])


prompt_tuning = PromptTuning


class Vera(nn.Module):
    """A frozen layer, and a path of two frozen random matrices with two vectors that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 10)
        self.down, self.up = nn.Linear(12, 4, bias=False), nn.Linear(4, 10, bias=False)
        self.requires_grad_(False)
        self.ranks, self.outputs = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        """Both added."""
        return self.base(x) + self.outputs * self.up(self.ranks * self.down(x))


vera = Vera


class Dora(nn.Module):
    """A frozen weight with a path of low rank, of which each output has a magnitude of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 10).requires_grad_(False)
        self.down, self.up = nn.Linear(12, 4, bias=False), nn.Linear(4, 10, bias=False)
        self.magnitude = nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        """The norm of the adapted weight is made of a product and has no gradient."""
        adapted = self.base.weight + self.up.weight @ self.down.weight
        scale = self.magnitude / adapted.norm(dim=1).detach()
        return scale * (functional.linear(x, self.base.weight) + self.up(self.down(x))) + self.base.bias


dora = Dora


class ScaledActivations(nn.Module):
    """A frozen block whose keys, values and hidden numbers are scaled by vectors that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.requires_grad_(False)
        self.keys, self.values = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))
        self.hidden = nn.Parameter(torch.ones(32))

    def forward(self, x: Tensor) -> Tensor:
        """Attention of two heads, and a network."""
        made = (self.query(x), self.keys * self.key(x), self.values * self.value(x))
        query, key, value = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in made)
        seen = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.down(self.hidden * functional.gelu(self.up(x)))


scaled_activations = ScaledActivations


class LowRankConvolution(nn.Module):
    """A frozen convolution, and beside it one to few channels with one of 1 x 1 behind it."""

    def __init__(self, base: nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        same = {"stride": base.stride, "padding": base.padding, "bias": False}
        self.down = nn.Conv2d(base.in_channels, rank, base.kernel_size, **same)  # type: ignore[arg-type]
        self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both added."""
        return self.base(x) + self.up(self.down(x))


class LowRankConvolutions(nn.Module):
    """A block of a ResNet with such paths, and a head that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = LowRankConvolution(nn.Conv2d(3, 8, 3, padding=1, bias=False), 2)
        self.first = LowRankConvolution(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), 2)
        self.second = LowRankConvolution(nn.Conv2d(16, 16, 3, padding=1, bias=False), 2)
        self.shortcut = LowRankConvolution(nn.Conv2d(8, 16, 1, stride=2, bias=False), 2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (8, 16, 16, 16)).requires_grad_(False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of ten classes."""
        x = functional.relu(self.norms[0](self.stem(x)))
        y = functional.relu(self.norms[1](self.first(x)))
        y = self.norms[2](self.second(y)) + self.norms[3](self.shortcut(x))
        return self.head(functional.relu(y).mean((2, 3)))


low_rank_convolutions = LowRankConvolutions


def four_layers() -> nn.Module:
    """Four linear layers and the mean of what they make."""
    layers = (nn.Linear(256, 256) for _ in range(4))
    return Calls(lambda own, x: own.layers(x).mean(), layers=nn.Sequential(*layers))


def head_and_loss() -> nn.Module:
    """The scores of 3,000 words and their loss."""
    return Calls(
        lambda own, x, target: functional.cross_entropy(own.head(x), target), head=nn.Linear(64, 3000, bias=False)
    )


class Checkpointed(nn.Module):
    """Eight linear layers with a checkpoint around each, or one around all of them."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        """The mean of what they make."""
        for layer in self.layers if self.apart else [self.layers]:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.mean()


def layers_apart() -> nn.Module:
    """A checkpoint around each."""
    return Checkpointed(apart=True)


def all_in_one() -> nn.Module:
    """One around all."""
    return Checkpointed(apart=False)


class Bottleneck(nn.Module):
    """A block of a ResNet-50: narrow, a window, wide, and the input beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.window = nn.Conv2d(16, 8, 1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.wide, self.beside = nn.Conv2d(8, 32, 1, bias=False), nn.Conv2d(16, 32, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (8, 8, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        """The mean of what it makes."""
        y = functional.relu(self.norms[0](self.narrow(x)))
        y = functional.relu(self.norms[1](self.window(y)))
        y = self.norms[2](self.wide(y)) + self.norms[3](self.beside(x))
        return functional.relu(y).mean()


bottleneck = Bottleneck


class ThreeWay(nn.Module):
    """The end of ResNet-50's first block: its last convolution, and the branch beside it, which waits."""

    def __init__(self) -> None:
        super().__init__()
        self.beside, self.wide = nn.Conv2d(64, 256, 1, bias=False), nn.Conv2d(64, 256, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The branch first, to which the other is added in place, as engines for inference do."""
        beside = self.beside(x)
        return self.wide(x).add_(beside)


three_way = ThreeWay


def _with_squares(*layers: nn.Module) -> nn.Module:
    """The mean of the squares by which layers miss their targets."""
    return Calls(
        lambda own, input, target: functional.mse_loss(own.layers(input), target), layers=nn.Sequential(*layers)
    )


def three_neurons() -> nn.Module:
    """AIfES's network for XOR: two inputs, three sigmoids, one more."""
    return _with_squares(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1), nn.Sigmoid())


def sine() -> nn.Module:
    """The network that learns a sine in TensorFlow Lite Micro's first example."""
    return _with_squares(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


def sine_last() -> nn.Module:
    """`sine`, of which the last layer learns."""
    module = sine().requires_grad_(False)
    module.get_submodule("layers.4").requires_grad_()
    return module


def biases_alone() -> nn.Module:
    """A convolutional network of which only the biases learn."""
    module = Calls(
        lambda own, x: own.layers(x).mean(),
        layers=nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10),
        ),
    )  # fmt: skip
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return module
