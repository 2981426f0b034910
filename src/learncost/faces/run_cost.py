"""`learncost run-cost MODEL --tokens D --on DEVICE`: days, energy, CO2 and price of a whole training run."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
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
    "precision",
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
    optimizer: Name | None = None,
    train: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    dtype: Name | None = None,
    precision: Name | None = None,
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
    tokens
        How many tokens the run has, such as 3e11.
    on
        A device (learncost list devices), a file in TOML or JSON that describes one, here (after learncost calibrate),
        or a file of learncost calibrate --out.
    devices
        How many of these devices there are.
    price_book
        What counts as an operation: matmul, as utilization is counted, or another (learncost list price-books).
    batch_size
        How many sequences are in one step. It matters to price books that count the optimizer.
    optimizer
        adamw, sgd or momentum, for price books that count it. The default is adamw, and sgd under the paper's books.
    dtype
        The type whose peak rate counts. The default is bf16, fp16 or fp32, the first that the device has.
    precision
        The same by the name of a precision: the type of its values counts.
    mfu
        Model FLOPs utilization, above 0 to 1. The default is what published runs used of such devices.
    hfu
        Hardware FLOPs utilization: what --procedure recompute runs again is work too.
    tokens_per_second
        The measured rate of all devices together, instead of a utilization.
    peak_tflops
        The TeraFLOP/s of one device, where none is published.
    power
        The measured watts of one device with its share of the host. The default is what is published, or modelled.
    pue
        The power usage effectiveness of the data centre. The default is 1.1, an assumption.
    country
        Where it runs, as a name or three letters, for the carbon intensity of its electricity.
    year
        The year of that intensity. The default is the last that is known.
    carbon_intensity
        Kilograms of CO2 equivalents a kWh, instead of a country's.
    price_per_hour
        US dollars for one device and hour.
    format
        How the result is written: table, json or md.

    Examples
    --------
    learncost run-cost llama-3-8b --tokens 15e12 --on H100-SXM --devices 1024
        Days, energy, CO2 and price of a whole training.
    learncost run-cost gpt2 --tokens 1e10 --on A100-SXM-40GB --country France
        The CO2 of a training in France.
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
        precision=precision,
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
    return written(found, wanted)
