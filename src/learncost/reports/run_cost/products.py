"""What a run takes, as products of figures: time, energy, carbon, price. Predictions and published runs share them."""

from __future__ import annotations

from learncost.devices.figure import Figure, computed

HOURS_A_DAY, SECONDS_A_DAY = 24, 86_400
PETAFLOP_DAY = 10**15 * SECONDS_A_DAY  # operations of a petaflop/s-day


def petaflop_days(flops: Figure) -> Figure:
    """Petaflop/s-days of operations."""
    return computed("PF/s-days", "FLOPs / 10^15 / 86,400", [flops], (), 1 / PETAFLOP_DAY)


def days(flops: Figure, devices: Figure, peak: Figure, utilization: Figure) -> Figure:
    """Days: operations over devices x peak (teraFLOP/s) x utilization."""
    return computed(
        "d", "FLOPs / (devices x peak x utilization)", [flops], [devices, peak, utilization], 1e-12 / SECONDS_A_DAY
    )


def utilization(flops: Figure, time: Figure, devices: Figure, peak: Figure) -> Figure:
    """The share of the peak (teraFLOP/s) that operations in a time (days) make of it."""
    formula = "FLOPs / (time x devices x peak)"
    return computed("", formula, [flops], [time, devices, peak], 1e-12 / SECONDS_A_DAY)


def days_at(tokens: Figure, rate: Figure) -> Figure:
    """Days: tokens over the tokens that all devices together take in a second."""
    return computed("d", "tokens / tokens a second", [tokens], [rate], 1 / SECONDS_A_DAY)


def days_of_steps(steps: Figure, step: Figure, devices: Figure) -> Figure:
    """Days: steps, each on one device, that all devices take together."""
    return computed("d", "steps x step / devices", [steps, step], [devices], 1 / SECONDS_A_DAY)


def device_hours(time: Figure, devices: Figure) -> Figure:
    """Hours of all devices together."""
    return computed("h", "days x 24 x devices", [time, devices], (), HOURS_A_DAY)


def energy(hours: Figure, power: Figure, pue: Figure) -> Figure:
    """kWh of the data centre: device-hours x watts of a device x PUE (power usage effectiveness)."""
    return computed("kWh", "device-hours x power x PUE", [hours, power, pue], (), 1e-3)


def carbon(energy: Figure, intensity: Figure) -> Figure:
    """Kilograms of CO2 equivalents of kWh."""
    return computed("kg", "energy x carbon intensity", [energy, intensity])


def price(hours: Figure, per_hour: Figure) -> Figure:
    """US dollars of device-hours."""
    return computed("USD", "device-hours x price", [hours, per_hour])
