"""Devices and the grid: what the files say is what is read; a file of the user's is checked key by key."""

import json

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.devices.device import devices
from learncost.reports.run_cost import published


def test_every_device_says_who_says_so():
    assert len(devices()) > 50
    for name, device in devices().items():
        assert device.name == name
        assert device.source
        assert device.confidence
        # What was measured stays under the peak of the data sheet.
        assert all(rate < device.peak_tflops[kind] for kind, rate in device.measured_tflops.items())


def test_the_v100_of_the_papers():
    """Patterson et al. 2021, table 4: 125 TFLOPS/s, 300 W of design."""
    device = lc.device("V100")
    assert (device.name, device.peak_tflops["fp16"], device.tdp_w) == ("NVIDIA V100 SXM2", 125, 300)


@pytest.mark.parametrize("name", ["nvidia h100 sxm", "H100 SXM", "h100-sxm", "H100_SXM"])
def test_a_device_by_words_of_its_name(name):
    # NVIDIA's data sheet: 989 teraFLOP/s of dense bf16 products (the 1979 that is printed there is with sparsity).
    assert lc.device(name).peak_tflops["bf16"] == 989


@pytest.mark.parametrize(
    ("name", "own"),
    [
        # As torch.cuda.get_device_name() calls them, with the drivers of several years.
        ("A100-SXM4-40GB", "NVIDIA A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 PCIe 40GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA B200", "NVIDIA B200 SXM"),
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 SXM2"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA RTX 4090"),
        ("GeForce RTX 3090", "NVIDIA RTX 3090"),
        ("Tesla T4", "NVIDIA T4"),
        ("NVIDIA TITAN RTX", "NVIDIA Titan RTX"),
        ("AMD Instinct MI300X", "AMD MI300X"),
    ],
)
def test_a_device_as_pytorch_calls_it(name, own):
    for spelling in (name, name.lower(), name.upper(), name.replace("-", " "), name.replace(" ", "_"), f" {name} "):
        assert lc.device(spelling).name == own, spelling
    assert lc.device(name.replace(" ", "")).name == own


def test_every_spelling_is_of_one_device():
    spellings = [spelling for device in devices().values() for spelling in (device.name, *device.names)]
    assert len(set(spellings)) == len(spellings)
    for device in devices().values():
        found = {lc.device(spelling).name for spelling in (device.name, *device.names)}
        assert found == {device.name}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "A100",
            "'A100' matches NVIDIA A100 SXM 40GB, NVIDIA A100 SXM 80GB, .*, DGX A100, DGX A100 40GB: give one of these",
        ),
        ("H10", "no device or cluster is called 'H10'; did you mean 'H100'"),
        ("NVIDIA RTX 4091", "did you mean 'NVIDIA RTX 4090'"),
        ("abacus", "see `learncost list devices`"),
        ("", "no device or cluster is called ''"),
        (7, "no device or cluster is called 7"),
        ("no/such.toml", "no such file"),
    ],
)
def test_unknown_devices(name, message):
    with pytest.raises(lc.InputError, match=message):
        lc.device(name)


def test_a_device_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "Mine"\npeak_tflops = { bf16 = 2.5 }\nmemory_gb = [8, 16]\ntdp_w = 35\n')
    device = lc.device(str(path))
    assert (device.name, device.peak_tflops, device.memory_gb, device.tdp_w) == ("Mine", {"bf16": 2.5}, (8, 16), 35)
    assert device.source == "the file mine.toml"
    as_json = tmp_path / "mine.json"
    as_json.write_text(json.dumps({"peak_tflops": {"bf16": 2.5}}))
    assert lc.device(str(as_json)).name == "mine"
    # 6 N D by hand on one device at its peak: seconds = FLOPs / 2.5e12.
    run = lc.run_cost("gpt2", 10**6, str(path), price_book="gpt3", mfu=1)
    assert run.days * 86_400 == pytest.approx(6 * 124_439_808 * 10**6 / 2.5e12)


def test_a_name_is_no_folder_that_happens_to_be_here(tmp_path, monkeypatch):
    (tmp_path / "V100").mkdir()
    monkeypatch.chdir(tmp_path)
    assert lc.device("V100").name == "NVIDIA V100 SXM2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peak_tflop = { bf16 = 1 }", "a device has no 'peak_tflop'; did you mean 'peak_tflops'"),
        ("peak_tflops = 3", "peak_tflops must be a table"),
        ("peak_tflops = { bf17 = 1 }", "peak_tflops has the data types .* not 'bf17'"),
        ("peak_tflops = { bf16 = -1 }", "peak_tflops.bf16 must be a number from 10"),
        ("peak_tflops = { bf16 = inf }", "to 10\\^9, not inf"),
        ("tdp_w = nan", "tdp_w must be a number from 10"),
        ("tdp_w = true", "tdp_w must be a number"),
        ("memory_gb = []", "memory_gb has no number"),
        ('memory_gb = ["8"]', "memory_gb must be a number"),
        ("names = 3", "names must be a list"),
        ('name = "a\\nb"', "name must be one line of text"),
        ("tdp_w = ", "is not TOML"),
        ("tdp_w = " + "9" * 400, "tdp_w must be a number from 10"),
        ("peak_tflops = { bf16 = 1e-320 }", "peak_tflops.bf16 must be a number from 10"),
    ],
)
def test_files_of_devices_that_are_wrong(text, message, tmp_path):
    path = tmp_path / "device.toml"
    path.write_text(text)
    with pytest.raises(lc.InputError, match=message) as error:
        lc.device(str(path))
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "list.json").write_text("[1]")
    for name in ("bytes.toml", "list.json", ""):
        with pytest.raises(lc.InputError):
            lc.device(str(tmp_path / name))


# Our World in Data's chart "Carbon intensity of electricity generation" (Ember): grams a kilowatt-hour.
@pytest.mark.parametrize(
    ("country", "year", "grams"), [("FRA", 2023, 56.039), ("united states", 2023, 369.473), ("World", 2020, 436.529)]
)
def test_the_grid(country, year, grams):
    figure = published.intensity(country, year)
    assert figure.value == pytest.approx(grams / 1000)
    assert "CC BY 4.0" in figure.source
    assert str(year) in figure.source


def test_the_grid_is_within_what_fuels_emit():
    """From what water and wind emit over their lives to a little above the oldest plants for coal and gas."""
    for country in published.countries().values():
        assert country.by_year, country
        assert all(0.005 < value < 1.4 for value in country.by_year.values()), country


def test_without_a_year_the_last():
    assert published.intensity("DEU").value == published.intensity("Germany", 2023).value == pytest.approx(0.38095)


def test_lists_of_devices_countries_and_runs(capsys):
    for registry, op in (("devices", "NVIDIA H100 SXM"), ("countries", "France"), ("runs", "GPT-3")):
        assert main(["list", registry]) == 0
        out = capsys.readouterr().out
        assert op in out
        assert max(map(len, out.splitlines())) <= 80
