"""Energy that is measured: RAPL's files as Linux lays them out, and NVML's calls, both of them made up here.

Neither was tried on hardware: the machines of the tests have no counters.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from energy import counters, measured  # benchmarks/energy.py

from learncost.ir.errors import InputError


@pytest.fixture
def powercap(tmp_path):
    """Documentation/power/powercap: two packages, one with its cores and memory, and psys, which has all in it."""
    zones = {
        "intel-rapl:0": ("package-0", 5_000_000),
        "intel-rapl:0:0": ("core", 3_000_000),
        "intel-rapl:0:1": ("dram", 1_000_000),
        "intel-rapl:1": ("package-1", 7_000_000),
        "intel-rapl:2": ("psys", 20_000_000),
    }
    (tmp_path / "intel-rapl").mkdir()  # the control type itself has no counter
    for zone, (name, energy) in zones.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n")
        (tmp_path / zone / "energy_uj").write_text(f"{energy}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("262143328850\n")
    return tmp_path


class Nvml:
    """Two devices that count millijoules, as nvmlDeviceGetTotalEnergyConsumption does."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.millijoules = [1_000, 2_000]

    def nvmlInit(self): ...  # noqa: N802

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.millijoules)

    def nvmlDeviceGetHandleByIndex(self, place):  # noqa: N802
        return place

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self.millijoules[handle]


def add(powercap, zone, joules):
    file = powercap / zone / "energy_uj"
    file.write_text(str(int(file.read_text()) + int(joules * 10**6)))


def test_energy_of_packages_memory_and_devices(powercap):
    nvml = Nvml()
    with measured(powercap, nvml) as energy:
        add(powercap, "intel-rapl:0", 2.5)
        add(powercap, "intel-rapl:0:0", 2.0)  # a part of package 0
        add(powercap, "intel-rapl:0:1", 0.5)
        add(powercap, "intel-rapl:1", 4.0)
        add(powercap, "intel-rapl:2", 9.0)  # all of it again
        nvml.millijoules = [31_000, 2_000]
    assert energy.by_counter == pytest.approx(
        {
            "RAPL package-0": 2.5,
            "RAPL package-0 dram": 0.5,
            "RAPL package-1": 4.0,
            "NVML device 0": 30.0,
            "NVML device 1": 0.0,
        }
    )
    assert energy.joules == pytest.approx(37.0)


def test_a_counter_that_starts_again(powercap):
    most = 262_143_328_850
    (powercap / "intel-rapl:1" / "energy_uj").write_text(str(most - 1_000_000))
    with measured(powercap, Nvml()) as energy:
        (powercap / "intel-rapl:1" / "energy_uj").write_text("500000")
    assert energy.by_counter["RAPL package-1"] == pytest.approx(1.5)


def test_a_device_that_goes_back_is_refused(powercap):
    nvml = Nvml()
    with pytest.raises(InputError, match="NVML device 1 went back"), measured(powercap, nvml):
        nvml.millijoules = [1_000, 0]


def test_no_counters(tmp_path):
    none = SimpleNamespace(NVMLError=OSError, nvmlInit=lambda: (_ for _ in ()).throw(OSError("no driver")))
    assert counters(tmp_path, none) == ()
    with pytest.raises(InputError, match="no energy counter here"), measured(tmp_path, none):
        pass


def test_a_counter_for_root_only(powercap, monkeypatch):
    """Linux gives energy_uj to root alone; root itself, as which tests may run, reads everything."""
    read = Path.read_text

    def refused(path, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(InputError, match="root only"), measured(powercap, Nvml()):
        pass


def test_a_counter_that_is_gone(powercap):
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(InputError, match=r"cannot read .*energy_uj: No such file"), measured(powercap, Nvml()):
        pass


@pytest.mark.parametrize("text", ["", "much", "-5", "1.5e3"])
def test_a_counter_that_holds_no_number(powercap, text):
    (powercap / "intel-rapl:0" / "energy_uj").write_text(text)
    with pytest.raises(InputError, match="must contain a number of microjoules"), measured(powercap, Nvml()):
        pass


def test_a_device_that_counts_no_energy(tmp_path):
    """NVML answers NVML_ERROR_NOT_SUPPORTED on devices before Volta."""
    nvml = Nvml()

    def refused(handle):
        raise Nvml.NVMLError("Not Supported")

    nvml.nvmlDeviceGetTotalEnergyConsumption = refused
    with pytest.raises(InputError, match="the energy of NVML device 0 cannot be read: Not Supported"):  # noqa: SIM117
        with measured(tmp_path, nvml):
            pass


def test_the_module_is_found_by_its_name(tmp_path, monkeypatch):
    """nvidia-ml-py is imported as pynvml, where it is installed; where it is not, there is no device."""
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert [counter.name for counter in counters(tmp_path)] == ["NVML device 0", "NVML device 1"]
    monkeypatch.setitem(sys.modules, "pynvml", None)  # its import fails
    assert counters(tmp_path) == ()
    with pytest.raises(InputError, match=r"^no energy counter here: .* has no RAPL, and NVML has no device [^\n]*$"):  # noqa: SIM117
        with measured(tmp_path):
            pass


def test_all_of_it_is_measured(powercap):
    nvml = Nvml()
    with measured(powercap, nvml) as energy:
        add(powercap, "intel-rapl:0", 2.5)
        nvml.millijoules = [1_500, 2_000]
    assert {figure.label for figure in energy.figures} == {"measured"}
    assert {figure.source: figure.value for figure in energy.figures} == pytest.approx(energy.by_counter)
    assert energy.to_dict() == {"joules": pytest.approx(3.0), "label": "measured", "by_counter": energy.by_counter}


def test_a_block_that_fails_says_its_own_fault(powercap):
    with pytest.raises(ZeroDivisionError), measured(powercap, Nvml()):
        1 / 0  # noqa: B018
