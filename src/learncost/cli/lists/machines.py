"""Lists of devices, clusters, countries, published runs and peaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from learncost.cli.lists.listed import Cell, Known, Listed, entries_of
from learncost.ir.dataclass import asdict


def _devices() -> Listed:
    from learncost.devices.device import devices

    entries = entries_of(devices().values(), "name names memory_gb bandwidth_gbs tdp_w peak_tflops source")
    columns: dict[str, Cell] = {
        "device": "{name}",
        "GB": lambda entry: " or ".join(f"{size:.3g}" for size in entry["memory_gb"]),
        "W": lambda entry: "" if entry["tdp_w"] is None else f"{entry['tdp_w']:g}",
        "dense peak, TFLOP/s": lambda entry: ", ".join(
            f"{kind} {rate:g}" for kind, rate in entry["peak_tflops"].items()
        ),
    }
    return Listed(entries, columns, _notes=("Clusters of them: learncost list clusters. --on takes both.",))


def _clusters() -> Listed:
    from learncost.devices.cluster import clusters

    entries: list[Known] = [cluster.to_dict() for cluster in clusters().values()]
    columns: dict[str, Cell] = {
        "cluster": "{name}",
        "a node": "{devices:,} x {device}",
        "links of a device in the node, one way": lambda entry: _linked(entry["inside"]),
        "between nodes": lambda entry: _linked(entry["between"]),
    }
    return Listed(entries, columns)


def _linked(link: Known | None) -> str:
    """Return the text of a link, such as InfiniBand NDR, 50 GB/s."""
    if link is None:
        return "none"
    several = f"{link['links']} x " if link["links"] > 1 else ""
    kind = "" if link["topology"] in ("network", "switch") else f", {link['topology']}"
    return f"{link['name']}, {several}{link['gbs']:g} GB/s{kind}"


def _countries() -> Listed:
    from learncost.reports.run_cost.published import countries

    entries: list[Known] = []
    for country in countries().values():
        year = max(country.by_year)
        country_entry = {"code": country.code, "name": country.name, "kg_per_kwh": country.by_year[year], "year": year}
        entries.append({**country_entry, "from": min(country.by_year)})
    columns: dict[str, Cell] = {
        "code": "{code}",
        "country": "{name}",
        "kg CO2e/kWh": "{kg_per_kwh:.3f}",
        "year": "{year}; from {from} on",
    }
    return Listed(entries, columns)


def _runs() -> Listed:
    from learncost.reports.run_cost.published import published_runs
    from learncost.reports.run_cost.show import published

    printed_text = {run.name: published(run) for run in published_runs()}
    entries: list[Known] = []
    for run in published_runs():
        products = {"mwh": (run.energy, 1e3), "t": (run.co2, 1e3), "usd": (run.price, 1.0)}
        multiplied = {name: figure.value / scale for name, (figure, scale) in products.items() if figure is not None}
        entries.append({**asdict(run), "computed": multiplied})
    columns: dict[str, Cell] = {
        "run": "{name}",
        "published figure, and the same recomputed from its inputs": lambda entry: printed_text[entry["name"]],
    }
    return Listed(entries, columns)


def _peaks() -> Listed:
    from learncost.reports.memory.published import measured

    of = {run.name: run for run in measured()}
    entries: list[Known] = [run.to_dict() for run in of.values()]
    columns: dict[str, Cell] = {
        "training step on one GPU": "{name}",
        "published": "{published}",
        "predicted": lambda entry: of[entry["name"]].predicted_text,
        "ratio": lambda entry: of[entry["name"]].ratio_text,
        "assumptions where the source is silent": lambda entry: "; ".join(entry["assumed"]),
    }
    return Listed(entries, columns)


MACHINES: Mapping[str, Callable[[], Listed]] = {
    "devices": _devices,
    "clusters": _clusters,
    "countries": _countries,
    "runs": _runs,
    "peaks": _peaks,
}
