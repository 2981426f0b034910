"""`learncost explain` and `learncost formulas`: what is typed and what is printed."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any

from cyclopts import Parameter

from learncost.derivations.explain import explain as explained
from learncost.derivations.explanation import Explanation
from learncost.derivations.formulas import Formulas
from learncost.derivations.formulas import formulas as formulated
from learncost.derivations.of_model import ModelFormulas
from learncost.equation.errors import InputError
from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written

FORMATS = {"table": "text", "md": "markdown"}
"""What formats are called at other commands, and here."""


def explain(
    subject: str,
    layer: str | None = None,
    /,
    *,
    procedure: Name | None = None,
    price_book: Name = "run",
    batch_size: Number | None = None,
    seq_len: Number | None = None,
    target_len: Number | None = None,
    jacobian: Annotated[bool | None, Parameter(show_default=False)] = None,
    optimizer: Name | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Explanation | str:
    """A layer, a word, or a layer of a model, line by line: forward, backward, weight update, what is kept.

    Parameters
    ----------
    subject
        A layer by its name or as people call it (attention, mha, SwiGLU; learncost list layers), a file in the
        notation, a word (softmax; learncost list words), or a model as learncost cost takes it.
    layer
        The layer of the model. Without it, all layers of the model are shown.
    procedure
        For a model, how it learns: bp (the default), recompute, pepita or mempepita.
    batch_size
        For a model, how many sequences are in one step. The default is 1.
    seq_len
        For a model, how many tokens are in a sequence. The default is the number of positions that it has.
    target_len
        For an encoder-decoder, how many tokens are in a sequence of the decoder. The default is --seq-len.
    jacobian
        For a layer, backward through explicit Jacobians, or in closed form. The default is as the price book does it.
    optimizer
        For a model and the layer optimizer, what updates the weights: adamw, sgd or momentum. The default is adamw,
        and sgd under the paper's price books.
    format
        How the result is written: table, md, latex or json.
    sizes
        For a model, any of its sizes or settings, such as --num-hidden-layers 4.

    Examples
    --------
    learncost explain attention
        Multi-head attention line by line, with its gradients.
    learncost explain softmax
        A word: its body and its gradient, written out.
    learncost explain gpt2 attention
        The attention that GPT-2 has, with its biases and mask, and what it costs there.
    """
    wanted = chosen(format, json, ("table", "text", "md", "markdown", "latex", "json"))
    found = explained(
        subject,
        layer,
        price_book=price_book,
        procedure=procedure,
        jacobian=jacobian,
        optimizer=optimizer,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        **refuse_unknown(sizes, _flags(explain)),
    )
    return found if wanted in ("table", "text") else found.show(FORMATS.get(wanted, wanted))


def formulas(
    subject: str,
    layer: str | None = None,
    /,
    *,
    procedure: Name = "bp",
    price_book: Name = "run",
    batch_size: Number | None = None,
    seq_len: Number | None = None,
    target_len: Number | None = None,
    jacobian: Annotated[bool | None, Parameter(show_default=False)] = None,
    optimizer: Name | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Formulas | ModelFormulas | str:
    """MACCs and FLOPs as formulas: of a layer in the symbols of the paper, or of a model's own layers.

    Parameters
    ----------
    subject
        A layer by its name or as people call it (attention, mha, SwiGLU; learncost list layers), a file in the
        notation, or a model as learncost cost takes it.
    layer
        The layer of the model. Without it, all layers of the model are shown.
    procedure
        How the model learns: bp, recompute, pepita or mempepita.
    batch_size
        For a model, how many sequences are in one step. The default is 1.
    seq_len
        For a model, how many tokens are in a sequence. The default is the number of positions that it has.
    target_len
        For an encoder-decoder, how many tokens are in a sequence of the decoder. The default is --seq-len.
    jacobian
        For a layer, backward through explicit Jacobians, or in closed form. The default is as the price book does it.
    optimizer
        For a model and the layer optimizer, what updates the weights: adamw, sgd or momentum. The default is adamw,
        and sgd under the paper's price books.
    format
        How the result is written: table, latex, mathml or json; for a model table, md, latex or json.
    sizes
        For a model, any of its sizes or settings, such as --num-hidden-layers 4.

    Examples
    --------
    learncost formulas attention
        What multi-head attention costs, as formulas.
    learncost formulas gpt2
        What every layer of GPT-2 costs, as formulas and as numbers.
    """
    wanted = chosen(format, json, ("table", "text", "md", "latex", "mathml", "json"))
    found = formulated(
        subject,
        layer,
        price_book=price_book,
        procedure=procedure,
        jacobian=jacobian,
        optimizer=optimizer,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        **refuse_unknown(sizes, _flags(formulas)),
    )
    if isinstance(found, ModelFormulas):
        if wanted == "mathml":
            raise InputError("a model's formulas are written as table, md, latex or json")
        return written(found, wanted)
    if wanted == "md":
        raise InputError("a layer's formulas are written as table, latex, mathml or json")
    return found if wanted in ("table", "text") else found.show(wanted)


def _flags(command: Callable[..., Any]) -> list[str]:
    return [name.replace("_", "-") for name in signature(command).parameters]
