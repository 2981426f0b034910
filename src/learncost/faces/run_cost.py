"""`learncost run-cost MODEL --tokens D --on DEVICE`: days, energy, CO2 and price of a whole training run."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.hardware import show
from learncost.hardware.run_cost import RunCost
from learncost.hardware.run_cost import run_cost as compute

OWN = (
    "tokens",
    "on",
    "devices",
    "procedure",
    "price-book",
    "batch-size",
    "seq-len",
    "target-len",
    "optimizer",
    "train",
    "train-layers",
    "lora",
    "lora-rank",
    "dtype",
    "mfu",
    "hfu",
    "tokens-per-second",
    "peak-tflops",
    "power",
    "pue",
    "country",
    "year",
    "carbon-intensity",
    "price-per-hour",
    "format",
    "json",
    "help",
)


def run_cost(
    model: str,
    /,
    *,
    tokens: Number | None = None,
    on: Name | None = None,
    devices: Number = "1",
    procedure: Name = "bp",
    price_book: Name = "matmul",
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    optimizer: Name = "adamw",
    train: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    dtype: Name | None = None,
    mfu: Number | None = None,
    hfu: Number | None = None,
    tokens_per_second: Number | None = None,
    peak_tflops: Number | None = None,
    power: Number | None = None,
    pue: Number | None = None,
    country: Name | None = None,
    year: Number | None = None,
    carbon_intensity: Number | None = None,
    price_per_hour: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> RunCost | str:
    """Days, energy, CO2 and price of a whole training run; every figure with its label, source and interval.

    Parameters
    ----------
    model
        A preset (learncost list models), a path to a config.json or to its folder, - for a config on standard input,
        or encoder, decoder, encoder-decoder with all sizes as flags.
    tokens
        Tokens of the run, such as 3e11.
    on
        A device (learncost list devices), or a file in TOML or JSON that describes one.
    devices
        How many of it.
    procedure
        bp, recompute, pepita, mempepita, or head-only.
    price_book
        What counts as an operation: matmul, as utilization is counted, or another (learncost list price-books).
    batch_size
        Sequences in a step; it matters to price books that count the optimizer.
    seq_len
        Tokens in a sequence, the encoder's where there is a decoder too; by default the positions that the model has.
    target_len
        Tokens in a sequence of the decoder of an encoder-decoder; by default --seq-len.
    optimizer
        sgd, momentum or adamw; for price books that count it.
    train
        What learns: all, none, head, embeddings, biases, or names of weights and modules, with commas between.
    train_layers
        Which blocks learn, or have low-rank paths, counted from 0: 10-11, or 0,2,5-7, or "last 2".
    lora
        Projections with a low-rank path, all else frozen: q_proj,v_proj, attention, all-linear.
    lora_rank
        Of these paths; by default 8.
    dtype
        Whose peak rate counts; by default bf16, fp16 or fp32, the first that the device has.
    mfu
        Model FLOPs utilization, above 0 to 1; by default 0.4, an assumption.
    hfu
        Hardware FLOPs utilization: what --procedure recompute runs again is work too.
    tokens_per_second
        Measured, of all devices together, instead of a utilization.
    peak_tflops
        TeraFLOP/s of one device, where none is published.
    power
        Measured watts of one device with its share of the host; by default what is published, or modelled.
    pue
        Power usage effectiveness of the data centre; by default 1.1, an assumption.
    country
        Where it runs: a name or three letters, for the carbon intensity of its electricity.
    year
        Of that intensity; by default the last that is known.
    carbon_intensity
        Kilograms of CO2 equivalents a kWh, instead of a country's.
    price_per_hour
        US dollars for one device and hour.
    format
        table, json or md.
    json
        Short for --format json.
    sizes
        Any size or setting of the model, in any accepted spelling. learncost list sizes shows them.
    """
    wanted = chosen(format, json, ("table", "json", "md"))
    found = compute(
        model,
        tokens,
        on,
        devices,
        procedure=procedure,
        price_book=price_book,
        dtype=dtype,
        mfu=mfu,
        hfu=hfu,
        tokens_per_second=tokens_per_second,
        peak_tflops=peak_tflops,
        power=power,
        pue=pue,
        country=country,
        year=year,
        carbon_intensity=carbon_intensity,
        price_per_hour=price_per_hour,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        optimizer=optimizer,
        train=train,
        train_layers=train_layers,
        lora=lora,
        lora_rank=lora_rank,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted, {"md": lambda run: show.sheet(run).markdown()})
