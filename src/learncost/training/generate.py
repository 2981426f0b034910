"""Text generation: prefill of the prompt, then decode token by token with the KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from learncost.engines.computed_inputs import computed_inputs
from learncost.engines.tokenizer import Tokenizer
from learncost.interpreter import execute
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.polynomial import shape_of
from learncost.models.configuration import Configuration
from learncost.models.expression import evaluate
from learncost.models.model import build
from learncost.models.sizes import LARGEST
from learncost.passes.lower import lower
from learncost.procedures.inference import inference


class Decoder:
    """The next token's logits for a sequence.

    The tables are those that `cost --procedure prefill` and `decode` price, run on NumPy. Where a model has learned
    positions and they are used up, the second half of the text is read again as if it were the beginning.
    """

    def __init__(self, configuration: Configuration, weights: Mapping[str, Any], dtype: Any = np.float32) -> None:
        model = build(configuration)
        self._tables = inference(model.table, configuration.name)
        # Sizes that the length of a run limits, as windows are, are without limit here.
        endless = {**configuration.values, "B": 1, "M": LARGEST}
        late = {axis: int(evaluate(rule, endless)) for axis, rule in model.rules.items() if axis not in model.sizes}
        self._configuration, self._sizes = configuration, {**model.sizes, **late}
        self._weights = {name: np.asarray(array, dtype) for name, array in weights.items()}
        self._prefill, self._decode = lower(self._tables.prefill), lower(self._tables.decode)
        learned = "index" in model.table.inputs
        self._most = configuration.sizes.get("max_position_embeddings", 0) if learned else 0
        self._tokens: list[int] = []
        self._cache: dict[str, Any] = {}

    def begin(self, tokens: Sequence[int]) -> Any:
        """Return the logits [v] after a non-empty text."""
        if not len(tokens):
            raise InputError("the prompt is empty: give --prompt TEXT")
        if self._most and len(tokens) > self._most:
            tokens = tokens[-self._most :]
        self._tokens = list(tokens)
        values = self._given(self._prefill, tokens, 0) | {"last": np.array([len(tokens) - 1])}
        return self._run(self._prefill, values, self._tables.lengths(self._sizes, 0, len(tokens)), len(tokens))

    def next(self, token: int) -> Any:
        """Return the logits [v] after one more token."""
        before = len(self._tokens)
        if self._most and before == self._most:
            return self.begin([*self._tokens[before // 2 + 1 :], token])
        self._tokens.append(token)
        values = self._given(self._decode, [token], before) | self._cache
        return self._run(self._decode, values, self._tables.lengths(self._sizes, before, 1), before + 1)

    def _given(self, table: Any, tokens: Sequence[int], before: int) -> dict[str, Any]:
        values = {name: self._weights[name] for name in table.weights}
        values["tokens"] = np.array([tokens], np.int64)
        length = before + len(tokens)
        sizes = {**self._sizes, **self._tables.lengths(self._sizes, before, len(tokens)), "M": len(tokens)}
        for name, array in computed_inputs(self._configuration, {"M": length}).items():
            if name in table.inputs:  # of which the last positions are those of the new tokens, and of their windows
                last = tuple(slice(-size, None) for size in shape_of(table.axes[name], sizes))
                values[name] = array[last] if array.dtype.kind in "iub" else array[last].astype(self._dtype)
        for name in table.inputs:
            if table.values[name].role == "buffer":
                values[name] = np.zeros(shape_of(table.axes[name], sizes), self._dtype)
        return values

    @property
    def _dtype(self) -> Any:
        return next(iter(self._weights.values())).dtype

    def _run(self, table: Any, values: dict[str, Any], lengths: Mapping[str, int], length: int) -> Any:
        execute(table, values, {**self._sizes, "B": 1, **lengths})
        self._cache = {
            array.name: self._cut(array, values[_made(array.name, values)], length) for array in self._tables.cache
        }
        (logits,) = (name for name in table.outputs if table.values[name].role == "value")
        return values[logits].reshape(-1)

    def _cut(self, cached: Any, value: Any, length: int) -> Any:
        """Return the cache of a window with its last positions only."""
        if cached.is_state:
            return value
        most = self._tables.lengths(self._sizes, length, 1)[cached.positions]
        place = cached.axes.index(cached.positions)
        return value.take(np.arange(value.shape[place])[-most:], place) if value.shape[place] > most else value


def _made(name: str, values: Mapping[str, Any]) -> str:
    """Return the grown cache of a decode step."""
    return f"{name}.2" if f"{name}.2" in values else name


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling.

    temperature  divides the logits; 0 takes the likeliest token always
    top_k        only the k likeliest; 0: all
    top_p        only the likeliest that together have this probability (Holtzman et al. 2020, nucleus sampling)
    """

    tokens: int = 200
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, inside, right in (
            ("tokens", self.tokens >= 1, "a whole number from 1"),
            ("temperature", 0 <= self.temperature < np.inf, "a number from 0"),
            ("top_k", self.top_k >= 0, "a whole number from 0"),
            ("top_p", 0 < self.top_p <= 1, "a number above 0 to 1"),
            ("seed", self.seed >= 0, "a whole number from 0"),
        ):
            if not inside:
                raise InputError(f"{name} must be {right}, not {getattr(self, name)!r}")

    def choose(self, logits: Any, draw: float) -> int:
        """Return the token at quantile `draw`, from 0 to 1, of the allowed tokens sorted by probability."""
        order = np.argsort(-logits, kind="stable")
        if self.temperature == 0:
            return int(order[0])
        if self.top_k:
            order = order[: self.top_k]
        scaled = logits[order].astype(np.float64) / self.temperature
        chances = np.exp(scaled - scaled[0])
        sums = np.cumsum(chances / chances.sum())
        if self.top_p < 1:
            sums = sums[: int(np.searchsorted(sums, self.top_p)) + 1]
        place = int(np.searchsorted(sums, draw * sums[-1], side="right"))
        return int(order[min(place, len(sums) - 1)])


def continuation(decoder: Decoder, prompt: Sequence[int], end: int, how: Sampling) -> Iterator[int]:
    """Yield the tokens after the prompt, up to the end of the document, which is excluded.

    Raises `InputError` if the model's outputs are not finite: no token follows from them.
    """
    draws = np.random.Generator(np.random.Philox(how.seed))
    logits = decoder.begin(prompt)
    for at in range(how.tokens):
        if not np.isfinite(np.max(logits)):  # NaN, or inf - inf in a softmax
            raise InputError("the model's outputs are not finite: its weights are damaged, or training diverged")
        token = how.choose(logits, float(draws.random()))
        if token == end:
            return
        yield token
        if at + 1 < how.tokens:
            logits = decoder.next(token)


def sample(decoder: Decoder, tokenizer: Tokenizer, prompt: str, how: Sampling) -> str:
    """Return the text after the prompt; without a prompt that of a new document."""
    tokens = [int(token) for token in tokenizer.encode(prompt.encode())] or [tokenizer.end]
    return tokenizer.decode(list(continuation(decoder, tokens, tokenizer.end, how)))
