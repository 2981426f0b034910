"""Files of the user's own that build a module: what is typed about them, what is run, what is remembered."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import types
from pathlib import Path

import pytest

from learncost import ops
from learncost.importer import walk
from learncost.importer.files.reading import CachedTable, CachePlace
from learncost.importer.files.user_file import target
from learncost.importer.inputs import attempts, parse_input, parse_inputs, symbols_of
from learncost.ir import parse
from learncost.ir.errors import InputError
from learncost.layers import layer

torch = pytest.importorskip("torch")

from learncost.importer.files.build import built  # noqa: E402 - it needs torch
from learncost.importer.files.user_file import watched  # noqa: E402
from learncost.importer.inputs import checked, tensors  # noqa: E402
from learncost.verification.live import verify_live  # noqa: E402

TWO = """
import torch
from torch import nn
import sizes_of_mine

class Two(nn.Module):
    def __init__(self, width=sizes_of_mine.WIDTH):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)))

    def forward(self, x, mask=None, *, flag=False):
        return self.second(self.first(x))

def build():
    print("building")
    return Two()

def large():
    return Two(40_000)

def wrong():
    return {}["x"]

def needs(width):
    return Two(width)

ready = Two()
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "sizes_of_mine.py").write_text("WIDTH = 4\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("two", "_two", "sizes_of_mine", "broken"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "kind", "sizes", "gradient"),
    [
        ("idx: int B M", "int64", ("B", "M"), False),
        ("x: float B 3 H=64 W=64 gradient", "float32", ("B", "3", "H", "W"), True),
        ("mask:bool B, M", "bool", ("B", "M"), False),
        ("x: float (B, M)", "float32", ("B", "M"), False),
        ("x: bfloat16", "bfloat16", (), False),
    ],
)
def test_an_input_is_a_name_a_kind_and_sizes(text, kind, sizes, gradient):
    read = parse_input(text)
    assert (read.kind, read.sizes, read.gradient) == (kind, sizes, gradient)
    assert parse_input(str(read)) == read


@pytest.mark.parametrize(
    ("text", "value"), [("use_cache = false", False), ("n=3", 3), ("m = None", None), ('s = "a: b"', "a: b")]
)
def test_an_input_may_be_a_value_that_is_no_tensor(text, value):
    assert parse_input(text).value == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("idx", "has neither a type nor a value: write it as in 'idx: int B M'"),
        ("idx: integr B", "has the unknown type 'integr'"),
        ("x: float B 0", "a size must be at least 1, not 0"),
        ("x: float B/2", "'B/2' is not a size"),
        ("x: int B gradient", "only floating-point tensors have a gradient, not int"),
        ("x: float H=3 H=4", "H has two examples, 3 and 4"),
        ("n = [", "is not a value"),
        ("n = __import__('os')", "is not a value"),
        (": int B", "has no name before its colon"),
        ("scale: 0.5", "is a value: write 'scale = 0.5'"),
        ("pair: (float B 8, float B 8)", "describe each tensor in a tuple"),
    ],
)
def test_what_is_no_input_is_refused(text, message):
    with pytest.raises(InputError) as refused:
        parse_input(text)
    assert message in str(refused.value)


def test_an_input_is_said_once_and_its_letters_have_one_example():
    with pytest.raises(InputError, match="the input x is given twice"):
        parse_inputs(["x: float B", "x: float B"])
    with pytest.raises(InputError, match="H has two examples, 8 and 16"):
        parse_inputs(["x: float H=8", "y: float H=16"])


def test_letters_are_tried_at_sizes_that_differ_from_each_other_and_from_every_number():
    inputs = parse_inputs(["x: float B 3 M", "y: float B N=5"])
    several = list(attempts(inputs))
    assert all(sizes["N"] == 5 for sizes in several)
    assert all(len({*sizes.values(), 3}) == 4 for sizes in several)
    assert all(len({sizes["M"] for sizes in several}) == len(several) for _ in [0])


def test_a_module_is_built_without_memory_for_its_parameters_and_keeps_ties_and_buffers(folder, capsys):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    module = built(target(f"{folder}/two.py:large"), False, pytest.fail).module
    assert sum(p.numel() for p in module.parameters()) == 40_000**2 + 2 * 40_000  # 6.4 GB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 10**6  # kB
    assert module.first.weight is module.second.weight
    assert module.mask.sum() == 6
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", ["build", "Two", "ready"])
def test_a_function_a_class_or_a_module_is_what_builds(folder, name):
    assert type(built(target(f"{folder}/two.py:{name}"), False, pytest.fail).module).__name__ == "Two"


def test_what_the_users_code_prints_goes_to_standard_error(folder, capsys):
    built(target(f"{folder}/two.py:build"), False, pytest.fail)
    captured = capsys.readouterr()
    assert (captured.out, "building" in captured.err) == ("", True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two.py:biuld", "has no 'biuld'; did you mean 'build'?|has no 'biuld'.*build"),
        ("two.py:needs", "needs width: write a function without arguments"),
        ("two.py:number", "is 3: not a module, a class or a function"),
        ("two.py:wrong", r"two.py:wrong failed: .*two.py:\d+: KeyError: 'x'"),
        ("none.py:build", "no such file: .*none.py"),
        ("broken.py:build", r"broken.py failed: .*broken.py:1: "),
    ],
)
def test_what_does_not_build_a_module_is_refused_in_one_line(folder, name, message):
    (folder / "broken.py").write_text("def build(:\n")
    with pytest.raises(InputError, match=message) as refused:
        built(target(f"{folder}/{name}"), False, lambda text: None)
    assert "\n" not in str(refused.value)


def test_a_file_needs_the_name_of_what_builds():
    assert target("gpt2") is None
    assert target("model.table") is None
    with pytest.raises(InputError, match=r"model.py requires the name of the function that builds the module, as in"):
        target("model.py")


def test_inputs_are_held_against_forward(folder):
    module = built(target(f"{folder}/two.py:build"), False, pytest.fail).module
    ordered = checked(parse_inputs(["flag = true", "x: float B 4"]), module, "two.py:build")
    assert [each.name for each in ordered] == ["x", "flag"]
    for texts, message in (
        (["y: float B 4"], r"no input is called 'y'.*two.py:build takes forward\(x, mask=None, \*, flag=False\)"),
        ([], r"the input x is missing; two.py:build takes forward"),
        (["x.0: float B 4"], r"no input is called 'x.0'"),
    ):
        with pytest.raises(InputError, match=message):
            checked(parse_inputs(texts), module, "two.py:build")


def test_example_tensors_have_the_kinds_and_the_sizes():
    inputs = parse_inputs(["x: float B 3 gradient", "i: int B", "m: bool M", "c = 2"])
    values = tensors(inputs, {"B": 5, "M": 7})
    assert (values["x"].shape, values["x"].dtype, values["x"].requires_grad) == ((5, 3), torch.float32, True)
    assert (values["i"].dtype, values["m"].dtype, values["m"].shape, values["c"]) == (torch.int64, torch.bool, (7,), 2)
    assert symbols_of(inputs) == {"x": "B 3", "i": "B", "m": "M"}


def place(folder: Path, asked: str = "x: float32 B 4") -> CachePlace:
    return CachePlace(folder / "two.py", ["build", asked])


def remembered(folder: Path) -> CachedTable:
    with watched() as files:
        built(target(f"{folder}/two.py:build"), False, pytest.fail)
    table = CachedTable("two(X) -> Y\n  Y[B] = X[B] + X[B]\n", ("a note",))
    place(folder).write(table, files)
    return table


def test_a_table_is_remembered_as_text_by_its_file_and_inputs(folder):
    table = remembered(folder)
    assert place(folder).read() == table
    assert place(folder, "x: float32 4 4").read() is None
    assert [path.suffix for path in (folder / "cache" / "learncost" / "tables").iterdir()] == [".json"]


def test_a_table_whose_text_is_not_what_was_kept_is_read_again(folder):
    remembered(folder)
    path = place(folder).path
    path.write_text(path.read_text().replace("X[B] + X[B]", "X[B]"))
    assert place(folder).read() is None


@pytest.mark.parametrize("changed", ["two.py", "sizes_of_mine.py"])
def test_a_file_that_changes_is_read_again(folder, changed):
    remembered(folder)
    path = folder / changed
    path.write_text(f"{path.read_text()}\n# another line\n")
    assert place(folder).read() is None


def test_a_file_of_settings_that_the_code_opens_is_seen_when_it_changes(folder):
    (folder / "settings.json").write_text("{}")
    (folder / "two.py").write_text(f"open({str(folder / 'settings.json')!r}).read()\n{TWO}")
    remembered(folder)
    assert place(folder).read() is not None
    (folder / "settings.json").write_text('{"width": 8}')
    assert place(folder).read() is None


def test_another_version_of_a_package_is_another_table(folder, monkeypatch):
    remembered(folder)
    site = folder / "site-packages"
    (site / "torch-99.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    assert place(folder).read() is None


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("of_package", [walk, parse, layer, ops])
def test_another_state_of_the_code_that_reads_is_another_table(folder, monkeypatch, of_package):
    remembered(folder)
    right, file = Path.stat, Path(of_package.__file__)

    def touched(self, **how):
        found = right(self, **how)
        return os.stat_result((*found[:6], found.st_size + 1, *found[7:])) if self == file else found

    monkeypatch.setattr(Path, "stat", touched)
    assert place(folder).read() is None


def test_a_folder_that_cannot_be_written_is_done_without(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    remembered(folder)
    assert place(folder).read() is None


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": 3}', '{"files": {}, "text": "x"}'])
def test_what_is_no_record_is_none(folder, text):
    remembered(folder)
    place(folder).path.write_text(text)
    assert place(folder).read() is None


CUSTOM = """
import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula

@torch.library.custom_op("tests::{name}", mutates_args=())
def scan(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return x @ a @ a.T

@scan.register_fake
def _(x, a):
    return torch.empty_like(x)

def backward(context, gradient):
    x, a = context.saved_tensors
    return gradient @ a @ a.T, torch.einsum("bmd,bme->de", x, gradient @ a)

scan.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
{formula}

class Scans(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.A = nn.Parameter(torch.randn(6, 4))

    def forward(self, x):
        return torch.ops.tests.{name}(self.first(x), self.A)
"""
FORMULA = (
    "register_flop_formula(torch.ops.tests.{name})(lambda x, a, *_, out_shape=None, **__: 2 * x[0] * x[1] * 6 * 9)"
)


def read(folder: Path, name: str, *flags: str) -> int:
    from learncost.cli.command import main

    formula = FORMULA.format(name=name) if "unknown" not in name else ""
    (folder / f"{name}.py").write_text(CUSTOM.format(name=name, formula=formula))
    ops = [f"{folder}/{name}.py:Scans", "--input", "x: float B M 6", *flags]
    return main(["import", *ops, "-o", str(folder / "made.table")])


def test_an_operation_with_a_registered_formula_is_a_line_that_is_not_derived(folder, capsys):
    import learncost as lc

    assert read(folder, "scan_known") == 0
    layer = lc.layer((folder / "made.table").read_text())
    (line,) = (line for line in layer.table.lines if line.meta.operator == "tests::scan_known")
    assert line.opaque.forward == "108 B M"

    assert lc.price(layer.table, {"B": 2, "M": 3, **layer.sizes}, lc.book("matmul")).flops == 108 * 6 + 2 * 6 * 6 * 6
    assert line.opaque.backward == f"{4 * 2 * 6 * 4} B M"  # four products in it


def test_an_operation_of_unknown_cost_is_refused_by_name_place_and_line_or_leaves_a_bound(folder, capsys):
    assert read(folder, "scan_unknown") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the operator tests::scan_unknown cannot be read" in error
    lines = (folder / "scan_unknown.py").read_text().splitlines()
    assert f"scan_unknown.py:{1 + next(n for n, line in enumerate(lines) if 'return torch.ops' in line)}" in error
    assert "--unknown zero" in error
    assert not (folder / "made.table").exists()
    assert read(folder, "scan_unknown", "--unknown", "zero") == 0
    assert "opaque(" in (folder / "made.table").read_text()


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 8)
        self.down = torch.nn.Linear(8, 4)

    def forward(self, x, times=None):
        y = self.down(self.up(x))
        if y.sum() > 1e9:
            return self.up(y)
        return y


def matrix_flops(layer, **sizes):
    import learncost as lc

    return lc.price(layer.table, {**layer.sizes, **sizes}, lc.book("matmul")).flops


@pytest.mark.parametrize(
    ("inputs", "symbols"),
    [
        ({"input": "float B 4"}, None),
        ({"input": torch.ones(3, 4)}, {"input": "B 4"}),
        ((torch.ones(3, 4, device="meta"),), {"input": "B 4"}),
        ("input: float B 4", None),
    ],
)
def test_a_module_in_memory_is_a_model_with_what_it_reads(inputs, symbols):
    import learncost as lc

    with torch.device("meta"):
        module = torch.nn.Linear(4, 8)
    layer = lc.from_module(module, inputs, symbols)
    assert matrix_flops(layer, B=5) == 2 * 5 * 4 * 8
    assert lc.cost(layer, B=5).parameters == 4 * 8 + 8
    assert next(module.parameters()).device.type == "meta"  # the caller's module stays as it is


def test_a_branch_on_values_is_refused_with_the_users_line_or_taken_as_one_run_takes_it():
    import learncost as lc

    with pytest.raises(lc.InputError) as refused:
        lc.from_module(Branches(), {"x": "float B 4"})
    message = str(refused.value)
    assert "test_importing.py:" in message
    assert "`if y.sum() > 1e9:` depends on values" in message
    assert "torch.where" in message
    assert "--as-run" in message
    assert torch._C._len_torch_function_stack() == 0  # a mode left there would turn PyTorch's fast paths off
    layer = lc.from_module(Branches(), {"x": "float 3 4"}, as_run=True)
    assert matrix_flops(layer) == 2 * (2 * 3 * 4 * 8)  # up and down, and no up again
    assert set(layer.table.weights) == {"up.weight", "up.bias", "down.weight", "down.bias"}


@pytest.mark.parametrize(
    ("inputs", "more", "message"),
    [
        ({"y": "float B 4"}, {}, "no input is called 'y'"),
        ({"x": "float B 5"}, {}, "Branches cannot be exported: .*test_importing.py:"),
        ({"x": "float B 4"}, {"as_run": True}, "a traced run has one size for B"),
        ((torch.ones(3, 4),), {"symbols": {"z": "B 4"}}, "there is no input 'z'"),
        ((torch.ones(3, 4), 1, 2), {}, r"3 inputs are given, but Branches takes forward\(x, times=None\)"),
    ],
)
def test_inputs_that_do_not_fit_a_module_are_refused(inputs, more, message):
    import learncost as lc

    with pytest.raises(lc.InputError, match=message):
        lc.from_module(Branches(), inputs, **more)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            lambda lc: lc.from_module(Branches, {"x": "float B 4"}),
            r"expected a torch.nn.Module, not <class .*: call it, as in Branches",
        ),
        (lambda lc: lc.from_module(Branches), "call it, as in Branches"),
        (lambda lc: lc.cost(Branches()), r"lc.from_module\(module, inputs\) reads a PyTorch module"),
        (lambda lc: lc.report({"model_type": "gpt2"}), "report requires the name of a model"),
        (
            lambda lc: lc.train(".", model=lc.layer("one(X) -> Y\nY[B d] = tanh(X[B d])")),
            "one is a table, which has no initial weights: use lc.Training",
        ),
    ],
)
def test_what_is_no_model_in_python_is_told_in_one_line(asked, message):
    import learncost as lc

    with pytest.raises(lc.InputError, match=message):
        asked(lc)


def test_a_report_in_python_takes_a_module_that_was_read(tmp_path):
    import learncost as lc

    read = lc.from_module(torch.nn.Linear(4, 4), {"input": "float B 4"})
    report = lc.report(read, procedure="bp", B=2, output=tmp_path / "page.html")
    assert report.models == ("Linear",)


class Several(torch.nn.Module):
    def forward(self, *several):
        return sum(several)


def test_what_a_star_takes_is_given_as_tensors():
    import learncost as lc

    with pytest.raises(lc.InputError, match="the input several: describe each tensor in a tuple"):
        lc.from_module(Several(), {"several": "float B 4"})
    assert lc.cost(lc.from_module(Several(), (torch.ones(3, 4), torch.ones(3, 4)))).total.flops
    assert lc.cost(lc.from_module(Several(), {"several.0": "float B 4", "several.1": "float B 4"}), B=3).total.flops


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    words: dict[str, torch.Tensor]
    weight: float = 0.5


class OfParts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Embedding(9, 6)

    def forward(self, batch: Batch, *, pair, scale=2.0):
        words = self.second(batch.words["ids"]).mean(1) * batch.weight
        result = types.SimpleNamespace(states=self.first(batch.image) + words, names=["a"])
        result.loss = (result.states @ self.first.weight).mul(pair[1] * scale).sum()
        return result


def test_parts_of_inputs_are_named_by_their_paths():
    """Of a dataclass, a dict and a tuple, described or given; the outputs are attributes of an object."""
    import learncost as lc

    parts = {"image": "float B 4 gradient", "words.ids": "int B M"}
    texts = {f"batch.{name}": text for name, text in parts.items()} | {"pair.0": "float B", "pair.1": "float B 1"}
    described = lc.from_module(OfParts(), texts)
    batch = Batch(torch.ones(3, 4, requires_grad=True), {"ids": torch.ones(3, 5, dtype=torch.long)})
    given = {"batch": batch, "pair": (torch.ones(3), torch.ones(3, 1))}
    symbols = {"batch.image": "B 4", "batch.words.ids": "B M", "pair.0": "B", "pair.1": "B 1"}
    read = lc.from_module(OfParts(), given, symbols)
    assert "batch_words_ids" in read.text
    assert read.table.lines == described.table.lines
    costs = lc.cost(read, price_book="matmul", B=3, M=5)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        OfParts()(**given).loss.backward()
    assert costs.total.flops == counter.get_total_flops() == 6 * 3 * 4 * 6 * 2
    assert not [check for check in verify_live(described, described.live()) if check.passed is False]
    with pytest.raises(lc.InputError, match="the input batch is given whole and by its parts"):
        lc.from_module(OfParts(), {**texts, "batch": "float B 4"})


class Asserts(torch.nn.Module):
    def forward(self, x):
        torch._assert(x.shape[1] % 3 == 0, "")
        return x * 2.0


def test_an_assertion_without_words_is_told_with_its_code():
    import learncost as lc

    with pytest.raises(lc.InputError, match=r"py:\d+: AssertionError: torch._assert\(x.shape\[1\] % 3"):
        lc.from_module(Asserts(), {"x": "float 2 4"})


def test_a_module_with_weak_references_to_its_parameters_is_built_without_memory(folder):
    (folder / "two.py").write_text("from torch import nn\ndef build():\n    return nn.LSTM(4, 8)\n")
    module = built(target(f"{folder}/two.py:build"), False, pytest.fail).module
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}
    assert module._flat_weights[0] is module.weight_ih_l0


BLOCKS = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.line(x)

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.start(x)
        for block in self.blocks:
            x = block(x)
        return x
"""


def test_equal_blocks_become_a_repeat_that_every_command_reads(folder, capsys):
    from learncost.cli.command import main

    (folder / "two.py").write_text(BLOCKS)
    ops = [f"{folder}/two.py:Blocks", "--input", "x: float B 4"]
    assert main(["import", *ops]) == 0
    assert "repeat n_layer carry" in capsys.readouterr().out
    assert main(["cost", *ops, "--B", "2", "--price-book", "matmul", "--json"]) == 0
    folded = json.loads(capsys.readouterr().out)["total"]
    assert main(["cost", *ops, "--B", "2", "--price-book", "matmul", "--json", "--no-fold"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == folded
    assert folded["flops"] == 2 * 2 * 4 * 4 * (4 + 3 + 4)  # four forward, three to blocks' inputs, four of weights
    assert main(["verify", *ops, "--mesh", "dp=2", "--placement", "ddp"]) == 0
    assert "Verification of Blocks over dp=2" in capsys.readouterr().out
    assert main(["verify", *ops, "--engine", "torch"]) == 0


def test_the_second_time_nothing_is_run_and_pytorch_is_not_imported(folder, capsys):
    from learncost.cli.command import main

    (folder / "two.py").write_text(BLOCKS)
    words = ["cost", f"{folder}/two.py:Blocks", "--input", "x: float B 4", "--B", "2"]
    assert main(words) == 0
    first = capsys.readouterr()
    program = "import sys; from learncost.cli.command import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    second = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert "runs" in first.err
    assert not second.stderr
    assert second.stdout == f"{first.out}False\n"


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        (["cost", "gpt2", "--input", "x: int B"], "--input requires an imported module"),
        (["import", "gpt2"], "'gpt2' is not a Python module to import: write FILE.py:NAME"),
        (["train", ".", "--model", "two.py:Blocks"], "no such file: two.py"),
        (["train", "two.py:Blocks"], "no such file or folder: two.py:Blocks"),
        (["import", "none.py:build"], "no such file: none.py"),
        (["cost", "none.py:build", "--unknown", "one"], "--unknown is refuse or zero, not 'one'"),
        (["cost", "none.py"], "none.py requires the name of the function"),
        (["cost", "none.py:sized(2)"], "write only the name after the colon, as in none.py:sized"),
        (["cost", "none.py:build()"], "write only the name after the colon, as in none.py:build"),
        (["list", "procedures", "--of", "none.py:build"], "`learncost import none.py:build -o build.table` writes it"),
        (["train", "none.py:build"], "no such file or folder: none.py:build"),
        (["contest", "none.py:build", "--budget", "steps:1"], "no such file or folder: none.py:build"),
        (["train", ".", "--input", "x: int B"], "unknown flag '--input'"),
    ],
)
def test_what_is_typed_wrong_is_one_line(ops, message, capsys):
    from learncost.cli.command import main

    assert main(ops) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_a_file_runs_only_because_its_path_was_typed(folder):
    """Neither Python's functions nor the server run one."""
    import learncost as lc

    with pytest.raises(lc.InputError):
        lc.cost(f"{folder}/two.py:build")
    assert "sizes_of_mine" not in sys.modules


def test_pages_and_figures_quote_what_was_typed(folder, capsys, monkeypatch):
    from learncost.cli.command import main

    (folder / "two.py").write_text(BLOCKS)
    monkeypatch.chdir(folder)
    ops = ["two.py:Blocks", "--input", "x: float B 4", "--B", "2"]
    assert main(["report", *ops, "-o", "page.html"]) == 0
    assert main(["figure", "macro-operations", *ops, "-o", "figure.svg"]) == 0
    assert "two.py:Blocks" in capsys.readouterr().out
    assert "two.py:Blocks" in (folder / "page.html").read_text()
    command = "learncost cost two.py:Blocks --input 'x: float B 4' --batch-size 2"
    assert command in (folder / "page.html").read_text()


def test_sides_that_stay_open_give_what_fixed_ones_give():
    import learncost as lc

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.MaxPool2d(2))
    open_sides = lc.from_module(module, {"input": "float B 3 H W"})
    assert open_sides.follows
    for height, width in ((32, 32), (64, 40)):
        fixed = lc.from_module(module, {"input": f"float B 3 {height} {width}"})
        assert lc.cost(open_sides, B=2, H=height, W=width).total == lc.cost(fixed, B=2).total
