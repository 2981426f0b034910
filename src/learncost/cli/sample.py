"""`learncost sample RUN`: continue a text with a trained model."""

from __future__ import annotations

from pathlib import Path

from learncost.ir.errors import InputError
from learncost.ir.precision import precision_of
from learncost.models.model import build
from learncost.reports.question import question
from learncost.training.data.tasks import next_token
from learncost.training.folder import SAMPLES, Folder
from learncost.training.generate import Decoder, Sampling
from learncost.training.generate import sample as compose
from learncost.training.train import number


@question()
def sample(
    run: str,
    /,
    *,
    prompt: str = "",
    temperature: float | str = 0.8,
    top_k: int | str = 0,
    top_p: float | str = 1,
    tokens: int | str = 200,
    seed: int | str = 0,
) -> str:
    """Continue a text with a trained model and a KV cache, up to the end of the document.

    Parameters
    ----------
    run
        The folder of a run of learncost train.
    prompt
        The text to continue. By default a new document is started.
    tokens
        The largest number of tokens to write.
    temperature
        The sampling temperature: above 1 more random, below 1 less; 0 always selects the most likely token.
    top_k
        Sample only from this many most likely tokens; 0 means all.
    top_p
        Sample only from the most likely tokens with this total probability.
    seed
        The seed of sampling.

    Commands
    --------
    learncost sample run-1 --prompt "Once upon a time"
        Continue a text.
    learncost sample run-1 --tokens 50 --temperature 0
        The likeliest 50 tokens.
    """
    numbers = {"tokens": tokens, "top_k": top_k, "seed": seed, "temperature": temperature, "top_p": top_p}
    how = Sampling(
        **{name: number(name, value, name in ("tokens", "top_k", "seed")) for name, value in numbers.items()}
    )
    folder = Folder(Path(run))
    options, configuration = folder.options(), folder.configuration()
    tokenizer = folder.tokenizer()
    if tokenizer is None or not next_token(configuration):
        where = f": its outputs for examples are in {folder.path / SAMPLES}" if configuration.layer is None else ""
        raise InputError(f"{run} cannot continue a text{where}")
    decoder = Decoder(configuration, folder.weights(build(configuration)), precision_of(options.dtype).array)
    return prompt + compose(decoder, tokenizer, prompt, how)
