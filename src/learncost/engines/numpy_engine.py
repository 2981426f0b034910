"""Training on NumPy: the interpreter executes the same tables that are priced."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from learncost.backends.precision import check_runs, typed
from learncost.engines.adapted import begun, constants, merged
from learncost.engines.core import Core, OptimizerSettings, PreparedStep, Values
from learncost.engines.inputs import Batch, is_on_gpu
from learncost.engines.rounding import real, whole, widened
from learncost.engines.state import evaluated
from learncost.engines.weights import initial_weights, shape
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.models.adaptation import adaptation
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, build
from learncost.models.quantization import changed
from learncost.procedures.code_updates import forward_in_integers
from learncost.procedures.inference import scored
from learncost.procedures.optimizer import DEFAULT
from learncost.procedures.statistics import with_statistics
from learncost.procedures.step import iterations_of, run_by


class Training(Core):
    """The training of a model on NumPy: it executes the table that `lc.cost` prices, exactly and slowly.

    `weights` and `state` are dictionaries of arrays; block weights are stacked along the first axis. `steps` is the
    number of steps.

    Parameters
    ----------
    model
        A preset, a path, or encoder, decoder, encoder-decoder with sizes, as for `lc.cost`.
    procedure
        What `learncost list procedures` names: bp (the default), recompute, pepita, fa and others.
    optimizer
        adamw (the default), sgd or momentum.
    learning_rate
        The learning rate; the attribute `learning_rate` may be changed between steps.
    momentum
        The momentum factor of momentum.
    betas
        The betas of adamw.
    epsilon
        The epsilon of adamw, added to the root of the second moment.
    weight_decay
        The weight decay: decoupled in adamw, else added to the gradient, which costs two FLOPs per parameter more than
        `lc.cost`.
    dropout
        The dropout probability. Masks are drawn from the seed, the step and the name of the mask.
    mode
        The mode of pepita and mempepita. "paper" is the rule of Pau & Aymone; on transformers it diverged at every
        learning rate tried. "stable" flips the sign, scales the error down, and compares after the residual sums.
    sign
        Overrides the mode's sign.
    scale
        Overrides the mode's scale of the error.
    seed
        The seed of all random numbers.
    dtype
        The type of all arrays. The default is float64, or the precision's type.
    accumulate
        The microbatches of a batch; their gradients are summed before one optimizer step.
    clip
        The largest global gradient norm; 0 disables clipping.
    weights
        Initial arrays of the plain or adapted model; random by default.
    precision
        The type of each role (`learncost list precisions`): bf16 is rounded in fp32; nf4 and others store frozen
        matrices as codes and scales.
    train, train_layers, lora, lora_rank, lora_alpha, dora
        The trainable parameters, as in `lc.cost`.
    projected
        Inputs to which PEPITA adds the output error through a fixed random matrix. The default is the one-hot tokens.
    sizes
        Any size of the model.

    Raises
    ------
    InputError
        As for `lc.cost`, and for an array of the wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> training = lc.Training("gpt2", n_layer=1, n_embd=8, n_head=2, vocab_size=10, seed=1, learning_rate=0.1)
    >>> tokens = np.arange(12).reshape(2, 6) % 10
    >>> losses = [training.step(tokens) for _ in range(20)]
    >>> losses[-1] < losses[0], training.steps
    (True, 20)
    """

    def __init__(
        self,
        model: str | Configuration | Layer,
        procedure: str = "bp",
        optimizer: str = DEFAULT,
        *,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        dropout: float = 0.0,
        mode: str = "paper",
        sign: float | None = None,
        scale: float | None = None,
        seed: int = 0,
        dtype: Any = None,
        accumulate: int = 1,
        clip: float = 0.0,
        weights: Mapping[str, Any] | None = None,
        precision: str | None = None,
        train: object = None,
        train_layers: object = None,
        lora: object = None,
        lora_rank: object = None,
        lora_alpha: object = None,
        dora: bool | None = None,
        projected: tuple[str, ...] = (),
        **sizes: Any,
    ) -> None:
        kind = precision_of(precision or "fp32")
        check_runs(kind)
        if dtype is None:
            dtype = np.float64 if precision is None else kind.array
        rates = (learning_rate, momentum, betas, epsilon, weight_decay)
        super().__init__(
            OptimizerSettings(procedure, optimizer, *rates, mode, sign, scale, seed, dtype, accumulate, clip)
        )
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must be a number from 0 to below 1, not {dropout!r}")
        others = {"accumulate": accumulate > 1, "clip": clip, "weight decay": weight_decay, "dropout": dropout}
        if kind.is_whole and any(others.values()):
            asked = ", ".join(name for name, is_asked in others.items() if is_asked)
            raise InputError(f"{kind.name} has no integer form for {asked}: remove it, or give 0")
        self.configuration = model if isinstance(model, Configuration) else configure(model, sizes)
        self.dropout, self._projected = dropout, tuple(projected)
        self._wanted = adaptation(train, train_layers, lora, lora_rank, lora_alpha, dora, kind.quantized is not None)
        self.precision = kind
        self.model = self._built(dropout > 0)
        self._models = {False: self.model}
        self.buffers: Values = {}  # of a module, and evaluation-only arrays
        self._forward: dict[bool, Model] = {}  # models without dropout, by padding
        self._looking: dict[bool, Table] = {}  # forward tables that also output the scores
        self._blocks = iterations_of(self.model, self._chosen)
        if self._chosen.chooses and self._wanted is not None:
            raise InputError(f"procedure {procedure} fixes the trainable parameters: remove train and lora")
        self._tables: dict[tuple[bool, int], Table] = {(False, self.iteration): self._step_table(self.model)}
        table = self.model.table
        if self.is_plain:
            if weights is None:
                weights = initial_weights(table, self.model.sizes, seed, self.dtype)
            begun_with = {n: _fitting(table, n, weights, self.model.sizes, self.dtype) for n in table.weights}
        else:
            plain = build(self.configuration)
            if weights is None:
                weights = initial_weights(plain.table, plain.sizes, seed, self.dtype)
            begun_with = begun(self.model, weights, seed, self.dtype)
        self._begin(self._whole(begun_with), self.table())
        self.constants: Values = constants(self.model.quantized, self.model.sizes, self.dtype)
        self.hold(weights)
        if self.precision.values == "bf16":
            types = dict(typed(self.table(), self.precision.name)[1])
            kept = [*self.weights_read, *self.state]
            if accumulate > 1:  # gradient sums are stored between microbatches
                halves = self._halves(self.table())
                types |= typed(halves.gather, self.precision.name)[1]
                kept += halves.sums
            self.low = frozenset(name for name in kept if types.get(name) == "bf16")
            if self.low and self._blocks > 1:
                raise InputError(f"{procedure} needs weights and states in fp32 or fp64, not bf16")
        self.weights, self.state = self._keep(self.weights), self._keep(self.state)

    @property
    def is_plain(self) -> bool:
        """Return whether the weights are the plain model's: none is frozen, adapted or quantized."""
        return self._wanted is None and not self.model.quantized

    def load(self, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> None:
        """Continue from weights of the training or of the plain model.

        Raises `InputError` for a missing one or one of another shape.
        """
        if not self.is_plain and not weights.keys() >= self.weights.keys():
            weights = self._whole(begun(self.model, weights, self.settings.seed, self.dtype))
        self.steps = steps
        if self._blocks > 1:
            self._change_block()
        for kind, loaded, current in (("weight", weights, self.weights), ("optimizer's state", state, self.state)):
            for name, array in current.items():
                if name not in loaded:
                    raise InputError(f"the {kind} {name} is missing")
                if loaded[name].shape != array.shape:
                    raise InputError(f"the {kind} {name} is {loaded[name].shape}, but must be {array.shape}")

        def taken(loaded: Mapping[str, Any], current: Values) -> Values:
            types = {name: array.dtype if array.dtype.kind in "iu" else self.dtype for name, array in current.items()}
            return self._keep({name: np.array(loaded[name], types[name], order="C") for name in current})

        self.weights, self.state = taken(weights, self.weights), taken(state, self.state)

    @property
    def plain_weights(self) -> Values:
        """Return the weights of the equivalent plain model. Raises `InputError` if there is none."""
        if self.is_plain:
            return {name: widened(array) for name, array in self.weights.items()}
        widened_weights = {name: real(self.table(), name, widened(array)) for name, array in self.weights.items()}
        plain = merged(self.model, build(self.configuration).table, widened_weights)
        return {name: np.asarray(array, self.dtype) for name, array in plain.items()}

    def _whole(self, weights: Mapping[str, Any]) -> Values:
        """Return weights as the step's table reads them; codes that learn have the type that a step gives them."""
        learned = {weight.codes.name for weight in self.model.quantized if weight.kind.learns}
        read = {name: whole(self.table(), name, array) for name, array in weights.items()}
        return {name: array.astype(self.dtype) if name in learned else array for name, array in read.items()}

    @property
    def learns(self) -> str:
        """Return the trainable parameters in words, with their number."""
        sizes = self.model.sizes  # one of several processes has only shards of weights
        count = sum(prod(shape(self.model.table, name, sizes)) for name in self.model.learning)
        return f"learns {self._wanted or 'all'}: {count:,} parameters"

    def _built(self, dropout: bool = False, padding: bool = False, evaluates: bool = False) -> Model:
        configuration = self.configuration
        if evaluates and configuration.layer is not None:
            configuration = evaluated(configuration)
        model = build(configuration, dropout=dropout, padding=padding)
        if unknown := [name for name in self._projected if name not in model.table.known]:
            known = ", ".join(sorted({*model.table.inputs, *model.table.axes} - {*model.table.weights}))
            raise InputError(f"{model.configuration.name} has no {unknown[0]!r} to add the error to; it has {known}")
        model = replace(model, projected=self._projected or model.projected)
        return changed(model, self._wanted, self.precision)

    def hold(self, arrays: Mapping[str, Any]) -> None:
        """Load running statistics, buffers and evaluation-only arrays of a layer that is the model.

        arrays  by their names in its table; weights are ignored
        """
        layer = self.configuration.layer
        for name, array in arrays.items() if layer is not None else ():
            if name in self.state:
                self.state[name] = np.array(array, self.state[name].dtype).reshape(self.state[name].shape)
            elif layer is not None and name not in layer.table.weights:
                array = np.asarray(array)
                self.buffers[name] = array if array.dtype.kind in "iub" else array.astype(self.dtype)

    @property
    def evaluated(self) -> Model:
        """Return the model without dropout and padding, as in a prediction."""
        return self._evaluated(False)

    def _evaluated(self, padding: bool) -> Model:
        """Return the model without dropout."""
        if padding not in self._forward:
            model = run_by(self._built(padding=padding, evaluates=True), self.settings.procedure)
            self._forward[padding] = forward_in_integers(model) if model.integers else model
        return self._forward[padding]

    def model_of(self, table: Table) -> Model | None:
        """Return the model whose step a table is; None for other tables."""
        return next((model for padding, model in self._models.items() if self.table(padding) is table), None)

    def table(self, padding: bool = False) -> Table:
        """Return the table that a step executes, the one that `lc.cost` prices; with padding, it has masks."""
        if padding not in self._models:
            self._models[padding] = self._built(self.dropout > 0, padding)
        if (padding, self.iteration) not in self._tables:
            self._tables[padding, self.iteration] = self._step_table(self._models[padding])
        return self._tables[padding, self.iteration]

    def _of_iteration(self) -> Table:
        return self.table()

    def _step_table(self, model: Model, iteration: int | None = None) -> Table:
        return with_statistics(super()._step_table(model, iteration), model.table)

    def step(self, tokens: Any = None, targets: Any = None, **batch: Any) -> float:
        """Run one training step on a batch and return the loss before it.

        Parameters
        ----------
        tokens
            Integers of shape [B, M], or a list of sequences of unequal length, which are padded.
        targets
            The target at each position, [B, M]; negative for none. A decoder's default is the next token, so that M - 1
            of M positions have one. An encoder's are required.
        batch
            The model's other inputs, by name: `mask`, true at tokens and false at padding; `encoder_tokens` and
            `encoder_mask` of an encoder-decoder; `types` of bert, all 0 by default; `image`
            [B, channels, height, width] and `features` [B, frames, channels]; `labels` [B] and `ends` [B, 2], negative
            for no target; `gradients` of a bare encoder, in place of targets: arrays by the names of its outputs; the
            loss is then nan.
        """
        return float(self.stepped(tokens=tokens, targets=targets, **batch))

    def stepped(self, **batch: Any) -> Any:
        """Run one training step and return the loss where it was computed: a number, or a tensor on a GPU.

        Takes what `step` takes, by name.
        """
        read_batch = self._read(**batch)
        values = (
            self._run(self._prepared(read_batch)) if self.settings.accumulate == 1 else self._accumulated(read_batch)
        )
        self._take(self.table(read_batch.padded), values)
        return values.get("loss", float("nan"))

    def _accumulated(self, whole_batch: Batch) -> Values:
        """Return the new weights and state of a step in microbatches; its loss is the sum of their shares."""
        halves = self._halves(self.table(whole_batch.padded))
        names = {name: shape(halves.gather, name, whole_batch.sizes) for name in halves.sums}
        values: Values = {name: np.broadcast_to(np.zeros((), self.dtype), size) for name, size in names.items()}
        loss: Any = 0.0
        for number in range(self.settings.accumulate):
            part = self._prepared(whole_batch.part(number, self.settings.accumulate), halves.gather, number)
            results = self._run(replace(part, values={**part.values, **values}))
            values = {name: results[new] for name, new in halves.gather.renewed.items()}
            loss = results.get("loss", float("nan")) + loss
        kept = {new: values[name] for name, new in halves.kept.items()}
        values |= self.weights_read | self.state | self._scalars(halves.update, whole_batch.count)
        return self._run(PreparedStep(halves.update, values, whole_batch.sizes)) | kept | {"loss": loss}

    def updates(self, tokens: Any = None, targets: Any = None, **batch: Any) -> Values:
        """Return what the optimizer would read: the gradient of every weight, or PEPITA's substitute.

        Takes what `step` takes.
        """
        return self._updates(self._run(self.prepare(tokens, targets, **batch)))

    def forward(self, tokens: Any = None, targets: Any = None, **batch: Any) -> Values:
        """Return every named value of a forward pass without dropout; outputs also under their plain names.

        Takes what `step` takes.
        """
        read_batch = self._read(tokens, targets, **batch)
        model = self._evaluated(read_batch.padded)
        sizes = {**model.sizes, **read_batch.sizes}
        values = self._run(PreparedStep(model.table, self._inputs(model.table, read_batch), sizes))
        return values | {model.table.header(name): values[name] for name in model.table.outputs}

    def look(self, **batch: Any) -> tuple[float, Any]:
        """Return the loss of a forward pass without dropout, and its class scores.

        Takes what `step` takes, by name.
        """
        read_batch = self._read(**batch)
        if read_batch.padded not in self._looking:
            table = self._evaluated(read_batch.padded).table
            self._looking[read_batch.padded] = replace(table, outputs=("loss", scored(table)))
        table = self._looking[read_batch.padded]
        sizes = {**self._evaluated(read_batch.padded).sizes, **read_batch.sizes}
        values = self._run(PreparedStep(table, self._inputs(table, read_batch), sizes))
        return float(values["loss"]), values[table.outputs[1]]

    def inputs(self, tokens: Any = None, targets: Any = None, **batch: Any) -> Values:
        """Return the inputs and weights of a forward pass without dropout, by the names of the table.

        Takes what `step` takes.
        """
        read_batch = self._read(tokens, targets, **batch)
        return self._inputs(self._evaluated(read_batch.padded).table, read_batch)

    def prepare(self, tokens: Any = None, targets: Any = None, **batch: Any) -> PreparedStep:
        """Return the step's table with the arrays that it reads.

        Takes what `step` takes.
        """
        return self._prepared(self._read(tokens, targets, **batch))

    def _prepared(self, read_batch: Batch, table: Table | None = None, part: int = 0) -> PreparedStep:
        table = table or self.table(read_batch.padded)
        values = self._inputs(table, read_batch, part) | self._scalars(table, read_batch.count) | self.state
        values |= self._projections(table, read_batch.sizes)
        for name in self._models[read_batch.padded].table.outputs:
            if name != "loss":
                gradient = read_batch.gradients.get(table.header(name), np.zeros(shape(table, name, read_batch.sizes)))
                values[f"d{name}"] = np.asarray(gradient, self.dtype)
        return PreparedStep(table, values, read_batch.sizes)

    def _read(self, tokens: Any = None, targets: Any = None, gradients: Any = None, **batch: Any) -> Batch:
        return Batch(self.model, {"tokens": tokens, "targets": targets, **batch}, gradients)

    def _inputs(self, table: Table, read_batch: Batch, part: int = 0) -> Values:
        values = self.weights | self.weights_read | self.constants
        for name, array in read_batch.inputs(table).items():
            if is_on_gpu(array):
                values[name] = array.double() if self.dtype == np.float64 else array.float()
            else:
                values[name] = array if array.dtype.kind in "iub" else whole(table, name, array).astype(self.dtype)
        for name in table.inputs:
            if table.values[name].role == "mask":
                values[name] = self.mask(table, name, read_batch.sizes, self.dropout, part)
        return values | self.buffers | {name: array for name, array in self.state.items() if name in table.inputs}


def _fitting(table: Table, name: str, weights: Mapping[str, Any], sizes: Mapping[str, int], dtype: Any) -> Any:
    if name not in weights:
        raise InputError(f"the weight {name} is missing")
    array, expected = np.asarray(weights[name]), shape(table, name, sizes)
    if array.shape != expected:
        raise InputError(f"the weight {name} has shape {array.shape}, but must have {expected}")
    return array.astype(dtype)
