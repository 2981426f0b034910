"""Calibration: exact on a bench whose clock is made up, its file's round trip and what is refused, and the command."""

import json
import math
from dataclasses import asdict

import pytest

import fuzz_calibration
import learncost as lc
from learncost.calibration import calibrate as measuring
from learncost.cli import calibrate as face
from learncost.cli.command import main
from learncost.devices.calibration import Calibration, calibration, calibration_path, load, save
from learncost.devices.rates import rates
from learncost.ops import canonical, entry
from learncost.timing.rates import MatmulGrid, RateCurve
from timings import flat

LAUNCH, FLOPS, BANDWIDTH, POINT = 2.0**-20, 2.0**30, 2.0**33, 2.0**-30


class Clock:
    """A made-up bench and its clock: every operation takes what the constants above say."""

    threads, operators = 3, True
    busy, larger = None, 1

    def __init__(self):
        self.now = 0.0
        self.timed = []

    def __call__(self):
        return self.now

    def takes(self, seconds):
        def doing():
            self.now += seconds

        return doing

    def wait(self):
        pass

    def product(self, orientation, m, n, k):
        self.timed.append((m, n, k))
        return self.takes(LAUNCH + 2 * m * n * k / FLOPS)

    def inner(self, m, n, k):
        return self.takes(8 * 2 * m * n * k / FLOPS), 8

    def move(self, elements):
        return self.takes(LAUNCH + 12 * elements / BANDWIDTH)

    def fill(self, bytes_):
        return self.takes(bytes_ / BANDWIDTH + bytes_ * POINT), self.takes(bytes_ / BANDWIDTH)

    def ops(self):
        yield "gelu", self.takes(LAUNCH + 1000 * POINT), 1000

    def calls(self):
        small = {name: (self.takes(5 * LAUNCH), 5) for name in ("launch", "launch_backward", "optimizer")}
        return small | {"product": (self.takes(LAUNCH), 1)}


@pytest.fixture
def clock(monkeypatch):
    fake_clock = Clock()
    monkeypatch.setattr(measuring, "perf_counter", fake_clock)
    return fake_clock


def measured(clock, sizes=measuring.QUICK):
    return measuring._Measuring(clock, sizes, lambda what: None).rates()


def test_what_is_measured_is_what_the_operations_took(clock):
    measurement = measured(clock)
    assert measurement.launch == measurement.launch_backward == measurement.optimizer == pytest.approx(LAUNCH)
    for grid in (*measurement.products.values(), measurement.inner):
        assert grid.rates == pytest.approx([FLOPS] * 27, rel=1e-6)
    assert measurement.bandwidth.values == pytest.approx([BANDWIDTH] * len(measuring.WORKING_SETS), rel=1e-6)
    assert measurement.ops == pytest.approx({"gelu": POINT}, rel=1e-6)
    assert measurement.fresh == pytest.approx(POINT, rel=1e-6)
    assert measurement.threads == 3
    # Every prediction was right, so that the interval is what lies beside the lines alone.
    assert (measurement.low, measurement.high) == pytest.approx(measuring.INTERVAL_FACTORS, rel=1e-3)


def test_the_largest_products_have_the_rate_of_smaller_ones(clock):
    sizes = (10, 100, 10_000)
    measurement = measured(clock, sizes)
    assert measurement.products["NN"].rates == pytest.approx([FLOPS] * 27, rel=1e-6)
    grid = [2 * m * n * k for m, n, k in clock.timed if (m, n, k) not in measuring.CHECKS]
    assert 0.1 * measuring.LONGEST * FLOPS < max(grid) <= measuring.LONGEST * FLOPS


def test_no_shape_of_a_model_is_timed():
    # Widths, heads, lengths and vocabularies of models are multiples of 64, or in the presets.
    sizes = {*measuring.SIZES, *measuring.QUICK}
    assert not any(size % 64 == 0 for size in sizes if size != 1600)
    assert not any(size in shape for shape in measuring.CHECKS for size in (64, 128, 256, 384, 512, 640, 768, 1024))


def example(**others):
    return Calibration("A machine", "2026-11-20", "PyTorch 9", {"operators": {"fp32": flat(**others)}}, 2)


def test_a_file_reads_as_it_was_written(tmp_path):
    path = tmp_path / "folder" / "own.json"
    save(example(ops={"gelu": 1e-9}, launch=1e-6, low=0.5, high=2.0), path)
    loaded = load(path)
    own = loaded.rates["operators"]["fp32"]
    assert (loaded.name, loaded.measured, loaded.library, loaded.threads) == ("A machine", "2026-11-20", "PyTorch 9", 2)
    assert own.products["NN"] == MatmulGrid((1, 10**6), (1e9,) * 8)
    assert own.bandwidth == RateCurve((1.0,), (1e9,))
    assert (own.ops, own.launch, own.low, own.high) == ({"gelu": 1e-9}, 1e-6, 0.5, 2.0)
    assert own.name == "A machine"
    assert own.source == "measured on 2026-11-20 with PyTorch 9, 2 threads"
    assert rates(str(path)) == own
    assert [left.name for left in path.parent.iterdir()] == ["own.json"]


def test_without_kernels_operators_count_for_both(tmp_path):
    save(example(), tmp_path / "own.json")
    assert rates(str(tmp_path / "own.json"), engine="kernels").operators
    with pytest.raises(lc.InputError, match="was measured in fp32, not in 'bf16'"):
        rates(str(tmp_path / "own.json"), "bf16")


def changed(*keys_and_value):
    """What a file says, with one value changed."""
    *keys, value = keys_and_value
    row = json.loads(json.dumps({"learncost_calibration": 1, **asdict(example(ops={"gelu": 1.0}))}))
    place = row
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return row


FP32 = ("rates", "operators", "fp32")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("learncost_calibration", 2), "not a calibration of this version"),
        (("name", "two\nlines"), "name must be one line of text"),
        (("name", None), "name must be one line of text"),
        (("threads", 0), "threads must be a whole number from 1"),
        (("rates", []), "'rates' must be an object"),
        (("rates", {}), "no rates of operators"),
        (("rates", "gpu", {}), "rates must be of operators or kernels, not 'gpu'"),
        ((*FP32, "launch", -1), "'launch' must be a number from 0, not -1"),
        ((*FP32, "launch", math.inf), "'launch' must be a number from 0"),
        ((*FP32, "launch", 10**400), "'launch' must be a number from 0"),
        ((*FP32, "launch", True), "'launch' must be a number from 0"),
        ((*FP32, "low", 0), "low must be above 0 and at most high"),
        ((*FP32, "low", 9), "low must be above 0 and at most high"),
        ((*FP32, "operators", "yes"), "operators must be true or false"),
        ((*FP32, "ops", "gelu", "fast"), "'ops.gelu' must be a number from 0"),
        ((*FP32, "products", "NN", 3), "'NN' must be an object"),
        ((*FP32, "products", "TN", "rates", [1.0] * 7), "TN needs sizes in rising order, and a rate for every three"),
        ((*FP32, "inner", "sizes", [5, 2]), "inner needs sizes in rising order"),
        ((*FP32, "inner", "rates", [1e9] * 7 + [0]), "'rates' must be a number above 0"),
        ((*FP32, "bandwidth", "values", []), "values must be a list of numbers"),
        ((*FP32, "bandwidth", "places", [1.0, 2.0]), "bandwidth needs one value per size"),
    ],
)
def test_a_foreign_file_is_refused_in_one_line(keys, message):
    with pytest.raises(lc.InputError) as error:
        calibration(changed(*keys), "own.json")
    assert message in str(error.value)
    assert "own.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_writes_where_here_reads(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(face, "measure", lambda tell, quick: (tell("products"), example(ops={"gelu": 1e-9}))[1])
    assert main(["calibrate"]) == 0
    printed = capsys.readouterr()
    assert "products" in printed.err
    assert str(calibration_path()) in printed.out
    assert calibration_path().is_relative_to(tmp_path)
    assert main(["cost", "gpt2", "--on", "here"]) == 0
    assert "A machine" in capsys.readouterr().out


def test_stopped_it_leaves_nothing(monkeypatch, tmp_path, capsys):
    def stopped(tell, quick):
        raise KeyboardInterrupt

    monkeypatch.setattr(face, "measure", stopped)
    assert main(["calibrate", "--out", str(tmp_path / "own.json")]) == 130
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in capsys.readouterr().err


def test_what_cannot_be_replaced_leaves_nothing(monkeypatch, tmp_path):
    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(lc.InputError, match=r"cannot write .*: No space left on device; free some space"):
        save(example(), tmp_path / "own.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["device.txt", "."])
def test_the_place_is_checked_before_anything_is_measured(out, monkeypatch, capsys):
    monkeypatch.setattr(face, "measure", lambda *given: pytest.fail("measured"))
    assert main(["calibrate", "--out", out]) == 2
    assert "--out must be a file that ends in .json" in capsys.readouterr().err


def test_a_place_where_nothing_can_be_made_is_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(face, "measure", lambda *given: pytest.fail("measured"))
    (tmp_path / "file").touch()
    assert main(["calibrate", "--out", str(tmp_path / "file" / "new" / "own.json")]) == 2
    assert "is no folder" in capsys.readouterr().err
    monkeypatch.setattr("os.access", lambda *given: False)  # root may write everywhere
    assert main(["calibrate", "--out", str(tmp_path / "own.json")]) == 2
    error = capsys.readouterr().err
    assert "cannot be written to" in error
    assert error.count("\n") == 1
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def checked(bench):
    """Every operation of a bench done once; its words are the vocabulary's."""
    for doing, times in bench.calls().values():
        doing()
        assert times >= 1
    for name, doing, points in bench.ops():
        assert name in ("add", "multiply", "sum") or entry(canonical(name.removesuffix("'")))
        doing()
        assert points > 1000
    bench.move(1000)()
    for doing in bench.fill(1000):
        doing()
    bench.inner(3, 4, 5)[0]()
    bench.wait()


def test_numpy_operations_are_what_they_are_called():
    np = pytest.importorskip("numpy")
    from learncost.calibration.operations import NumPyBench

    for orientation in ("NN", "TN", "NT"):
        product = NumPyBench().product(orientation, 3, 4, 5)
        left, right = product.args
        assert (left.shape, right.shape) == ((3, 5), (5, 4))
        assert (left.flags.c_contiguous, right.flags.c_contiguous) == (orientation[0] == "N", orientation[1] == "N")
        np.testing.assert_array_equal(product(), left @ right)
    bench = NumPyBench()
    bench.move(1000)()
    assert {name for name, doing, _ in bench.ops() if doing() is not None} >= {"add", "exp", "sum"}


def test_operators_of_pytorch_run():
    pytest.importorskip("torch")
    from learncost.calibration.torch import TorchBench, factors

    bench = TorchBench()
    checked(bench)
    names = [name for name, _, _ in bench.ops()]
    assert {"gelu_tanh", "gelu_tanh'", "normalize'", "softmax", "adamw", "add"} <= set(names)
    for orientation in ("NN", "TN", "NT"):
        left, right = factors(orientation, 3, 4, 5, bench.dtype, bench.device)
        assert (left.shape, right.shape) == ((3, 5), (5, 4))
        assert (left.is_contiguous(), right.is_contiguous()) == (orientation[0] == "N", orientation[1] == "N")


def test_kernels_run():
    pytest.importorskip("torch")
    from learncost.engines.compiler import compiler

    if compiler() is None:
        pytest.skip("no C compiler")
    from learncost.calibration.kernels import KernelBench

    bench = KernelBench()
    checked(bench)
    bench.product("TN", 3, 4, 5)()
    names = {name for name, _, _ in bench.ops()}
    assert {"gelu_tanh", "gelu_tanh'", "normalize'", "softmax", "adamw", "add", "sum", "rms_normalize'"} <= names


def test_damaged_files_are_refused_in_one_line():
    assert fuzz_calibration.fuzz(40, seed=1) == []
