"""What a user gives of a run, checked: one clear line for what cannot be."""

from __future__ import annotations

from collections.abc import Mapping

from learncost.devices.figure import Figure
from learncost.ir.errors import InputError, shown
from learncost.reports.run import check_tokens

# name: (unit, lowest, highest, what would be right); the ends are what can be, not what is usual.
_LIMITS: Mapping[str, tuple[str, float, float, str]] = {
    "mfu": ("", 1e-6, 1.0, "a share of the peak above 0 and at most 1, such as 0.4"),
    "hfu": ("", 1e-6, 1.0, "a share of the peak above 0 and at most 1, such as 0.5"),
    "tokens_per_second": ("1/s", 1e-9, 1e15, "tokens a second of all devices together, above 0"),
    "peak_tflops": ("TFLOP/s", 1e-9, 1e9, "teraFLOP/s of one device, above 0"),
    "power": ("W", 1e-6, 1e6, "watts of one device, above 0 and at most 10^6"),
    "pue": ("", 1.0, 10.0, "the energy of the data centre over that of its machines, from 1 to 10, such as 1.1"),
    "carbon_intensity": ("kg/kWh", 0.0, 2.0, "kilograms of CO2 equivalents a kWh, from 0 to 2; 429 g is 0.429"),
    "price_per_hour": ("USD/h", 0.0, 1e6, "US dollars for one device and hour, from 0 to 10^6"),
}
MOST_DEVICES = 10**8


def figure(name: str, value: object) -> Figure:
    """What was typed, within what can be."""
    unit, least, most, right = _LIMITS[name]
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever does not convert is refused
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isinstance(value, bool) or not least <= number <= most:
        raise InputError(f"{name} must be {right}, not {shown(value)}")
    label = "measured" if name in ("tokens_per_second", "power") else "given"
    return Figure(number, unit, label, f"--{name.replace('_', '-')}")


def devices(value: object) -> Figure:
    """A number of devices."""
    try:
        number = check_tokens("devices", value)
    except InputError:
        number = 0
    if not 1 <= number <= MOST_DEVICES:
        raise InputError(f"devices must be a whole number from 1 to 10^8, not {shown(value)}")
    return Figure(number, "", "given", "--devices")


def check_together(typed: Mapping[str, Figure], country: str | None, year: int | str | None) -> None:
    """Refuse two figures that say the same."""
    speeds = [name for name in ("mfu", "hfu", "tokens_per_second") if name in typed]
    if len(speeds) > 1:
        raise InputError(f"{' and '.join(speeds)} both say how fast the run is; give one of them")
    if "carbon_intensity" in typed and (country is not None or year is not None):
        raise InputError("carbon_intensity and country (with its year) both say how clean the energy is; give one")
