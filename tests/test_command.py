import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import learncost
import learncost as lc
from learncost.cli.command import COMMAND_GROUPS, COMMANDS, MERGED, main
from learncost.cli.completion import completion, following
from learncost.cli.help import page
from learncost.cli.typed import read
from learncost.cost_models.books import BOOKS
from learncost.cost_models.errata import errata
from learncost.cost_models.formula import formulas
from learncost.devices.device import device, devices, short_name
from learncost.procedures.procedure import INFERENCE, LEARNING
from learncost.reports.question import FLAGS

COMMAND = [sys.executable, "-m", "learncost.cli.command"]
ENCODER = "--num-hidden-layers 1 --hidden-size 8 --num-attention-heads 2 --intermediate-size 16 --vocab-size 10"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command is refused."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("learncost: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cost", "needs MODEL"),
        ("compare --json", "needs MODEL"),
        ("formulas", "needs SUBJECT"),
        ("cost gtp2", "did you mean 'gpt2'"),
        ("cost gpt2 bert", "cost takes one model; unexpected second argument 'bert': run it for one after the"),
        ("memory gpt2 llama-2-7b x", "compare them with learncost report gpt2 llama-2-7b"),
        ("cost gpt2 batch-size 8", "second argument 'batch-size': a flag begins with --, as in --batch-size"),
        ("cost gpt2 n_embd=8", "unexpected second argument 'n_embd=8': a flag begins with --, as in --n-embd"),
        ("emit gpt2 llama-2-7b", "emit takes one model or layer; unexpected second argument 'llama-2-7b': remove it"),
        ("cost gpt2 '\x1b[31m'", "learncost report gpt2 '"),
        ("serve x", "serve takes no arguments; unexpected argument 'x': remove it"),
        ("formulas gpt2 attention x", "formulas takes SUBJECT and LAYER; unexpected argument 'x'"),
        ("explain attention norm", "'attention' has no layers; remove the second argument 'norm'"),
        ("cots gpt2", "no command is called 'cots'; did you mean 'cost'"),
        ("gpt2", "there are cost, memory"),
        ("--verison", "'--verison'; did you mean '--version'"),
        ("cost gpt2 --seq-len", "--seq-len needs a value"),
        ("cost gpt2 --seq-len --json", "--seq-len needs a value"),
        ("cost gpt2 --hidden-size", "--hidden-size needs a value"),
        ("cost gpt2 --precision=", "--precision needs a value"),  # as of a variable that is not set
        ("cost gpt2 --engine fast", "no engine is called 'fast'"),  # counts do not depend on it
        ("compare gpt2 --procedure bp,pepita --engine fast", "no engine is called 'fast'"),
        ("report gpt2 --clip x", "--clip must be a norm above 0"),
        ("report gpt2 --loss ligr", "no loss is called 'ligr'"),
        ("cost gpt2 --hidden-size 7", "--hidden-size 7 is not a multiple of --num-attention-heads 12"),
        ("cost gpt2 --seq-len 1025", "longer than the 1024 positions"),
        ("cost gpt2 --hidden-size 24 --hidden-size 24", "--hidden-size is given twice"),
        ("cost gpt2 --seq-len 4 --seq-len 4", "--seq-len is given twice"),
        ("cost gpt2 --json --json", "--json is given twice"),
        ("cost gpt2 --n_embd 24 --hidden-size 48", "contradicts"),
        ("cost gpt2 --seq-len 4 --N 5", "contradicts"),
        ("cost gpt2 --hiden-size 24", "unknown flag '--hiden-size'; did you mean '--hidden-size'"),
        ("cost gpt2 --family bp", "unknown flag '--family'; `learncost cost --help all` shows every flag"),
        ("cost gpt2 --procedur bp", "unknown flag '--procedur'; did you mean '--procedure'"),
        ("cost gpt2 --procedur", "did you mean '--procedure'"),
        ("cost gpt2 --colour red", "unknown flag '--colour'"),
        ("cost gpt2 --x.y 3", "unknown flag '--x.y'"),
        ("cost gpt2 -q 3", "unknown flag"),
        ("cost gpt2 -seq-len 3", "unknown flag '-seq-len': type --seq-len"),
        ("cost gpt2 --json=3", "--json"),
        ("cost gpt2 --json --format csv", "--json contradicts --format csv"),
        ("cost gpt2 --format yaml", "format must be one of table, json"),
        ("cost gpt2 --by leyer", "by must be one of layer"),
        ("cost gpt2 --procedure pb", "there are bp, recompute"),
        ("cost gpt2 --price-book papr", "the nearest is 'paper'"),
        ("cost gpt2 --optimizer adam", "the nearest is 'adamw'"),
        ("cost gpt2 --dtype fp31", "no precision is called 'fp31'"),
        ("cost gpt2 --dropout 1", "dropout must be a number from 0 to below 1"),
        ("cost gpt2 --dropout nan", "dropout must be a number"),
        ("cost gpt2 --dropout -0.1", "dropout must be a number"),
        ("cost gpt2 --tokens 1e400", "tokens must be a whole number"),
        ("cost gpt2 --tokens 0", "tokens must be a whole number"),
        ("cost gpt2 --target-len 4", "remove --target-len"),
        ("cost gpt2 --activation rello", "did you mean 'relu'"),
        ("cost gpt2 --layer-norm-epsilon x", "layer-norm-epsilon must be a number"),
        ("cost gpt2 --architecture Foo", "GPT2LMHeadModel"),
        ("cost gpt2 --n-enc 3", "gpt2 has no n-enc"),
        ("cost encoder --hidden-size 8", "give --num-hidden-layers N"),
        (f"cost encoder {ENCODER}", "give --seq-len"),
        ("cost bert-base --procedure pepita", "no output to learn from"),
        ("cost ./nothing.json", "no such file"),
        (f"cost {'x' * 300}.json", "File name too long"),
        (f"cost {'x' * 300}.yaml", "unknown model"),
        (f"cost {'x' * 300}.py:build", "is too long"),
        (f"cost gpt2 -o {'x' * 300}/y.json", "is too long"),
        (f"train {'x' * 300}", "is too long"),
        ("compare gpt2 --procedures bp,bp", "different names"),
        ("compare gpt2 --procedures bp,pepitta", "the nearest is 'pepita'"),
        ("errata E99", "no erratum is called 'E99'"),
        ("errata E2 --format mathml", "format must be one of"),
        ("list modells", "did you mean 'models'"),
        ("list models more", "list takes WHAT; unexpected argument 'more'"),
        ("fit gpt2", "give --budget, such as --budget 24GB"),
        ("fit gpt2 --ram 8GB", "the flag '--ram' is called '--budget' now"),
        ("cost gpt2 --format=mathml", "format must be one of table, json, csv, md, latex, html, not 'mathml'"),
        ("bench tiny", "bench is no longer a command: run python benchmarks/against_torch_and_jax"),
        ("bench --help", "bench is no longer a command: run python benchmarks/against_torch_and_jax"),
        ("errata --seq-len 4", "unknown flag '--seq-len'"),
        ("train x --resume y --precision bf16-masters", "remove PATH"),
        ("train --resume y --precision bf16-masters", "remove --precision"),
        ("train x --steps 1,00", "steps must be a whole number"),
        ("nothing --help", "no command is called 'nothing'"),
        ("help cots", "did you mean 'cost'"),
        ("cost gpt2 --seq-len abc --N 5", "contradicts --seq-len"),
        ("cost gpt2 --output=", "--output needs a value"),
        ("report gpt2 --output=", "--output needs a value"),
        ("formulas attention --optimizer adamm", "the nearest is 'adamw'"),
        ("explain norm --optimizer adamm", "the nearest is 'adamw'"),
    ],
)
def test_what_is_wrong_is_one_line(line, message, capsys):
    assert message in refused(line.split(), capsys)


@pytest.mark.parametrize(
    "line",
    [
        ("list", "operators", "--of", "\x1b[31m"),
        ("contest", "\x1b[31m/no"),
        ("cost", "gpt2", "--output", "\x1b[31m/no/such.json"),
        ("cost", "\x1b[31m"),
        ("errata", "\x1b[31m"),
        ("cost", "gpt2", "--seq-len", "\x1b[31m"),
        ("cost", "gpt2", "--\x1b[31m", "4"),
        ("memory", "gpt2", "--plan", "\x1b[31m"),
        ("train", "\x1b[31m/no.txt"),
    ],
)
def test_what_a_terminal_does_not_show_is_escaped(line, capsys):
    assert "\\x1b" in refused(line, capsys)


@pytest.mark.parametrize("flag", ["--seq-len", "--batch-size", "--hidden-size", "--n_layer", "--voc", "--d-ff", "--h"])
@pytest.mark.parametrize(
    "value",
    ["0", "-1", "1.5", "1.0", "1e400", "nan", "inf", "abc", " ", "9" * 13, "9" * 5000, "1_00", "1,00", "0x10", "٣"],
)
@pytest.mark.parametrize("joined", [True, False])
def test_sizes_are_whole_numbers(flag, value, joined, capsys):
    arguments = ["cost", "gpt2", *([f"{flag}={value}"] if joined else [flag, value])]
    assert "must be a whole number from 1 to 1,000,000,000,000" in refused(arguments, capsys)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"model_type": "no_such_type"}', '{"model_type": "gpt2", "n_embd": 0}']
)
@pytest.mark.parametrize("command", ["cost", "compare"])
def test_a_bad_file_is_one_line(text, command, tmp_path, capsys, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text(text)
    refused([command, str(path)], capsys)
    refused([command, str(tmp_path)], capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    refused([command, "-"], capsys)


@pytest.mark.parametrize(
    "line", ["cost - --n-embd=24 --json", "cost --json - --n-embd 24", "cost --n-embd 24 --json -", "cost --json -- -"]
)
def test_a_configuration_on_standard_input(line, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"model_type": "gpt2", "n_embd": 24, "n_layer": 2}'))
    assert main(line.split()) == 0
    ledger = json.loads(capsys.readouterr().out)
    assert ledger["parameters"] == learncost.cost("gpt2", n_layer=2, n_embd=24).parameters


@pytest.mark.parametrize(
    "flags",
    [
        "--hidden-size 24 --num-hidden-layers 2 --seq-len 5",
        "--hidden_size=24 --num_hidden_layers=2 --seq_len=5",
        "--n_embd 24 --n_layer 2 --seq-length 5",
        "--d-model=24 --n-layers 2 --N 5",
        "--Hidden-Size 24 --NUM-HIDDEN-LAYERS 2 --N=5",
    ],
)
def test_spellings(flags, capsys):
    assert main(["cost", "gpt2", *flags.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == learncost.cost("gpt2", hidden_size=24, n_layer=2, seq_len=5).to_dict()


def test_settings_are_flags_too(capsys):
    line = "cost bert-base --architecture BertForMaskedLM --activation relu --layer-norm-epsilon 1e-6 --json"
    assert main(line.split()) == 0
    assert "masked-language-model head" in json.loads(capsys.readouterr().out)["counted"]


def test_the_longest_sequence(capsys):
    assert main(f"cost encoder {ENCODER} --seq-len 1000000000000 --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["seq_len"] == 10**12


@pytest.mark.parametrize("columns", [80, 60, 120])
@pytest.mark.parametrize("line", ["--help", "help cost", "", "--version", *(f"{name} --help" for name in COMMANDS)])
def test_help_fits_the_width(line, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert out
    assert not err
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_has_forty_lines_and_twelve_flags(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    short = capsys.readouterr().out
    assert main([name, "--help", "all"]) == 0
    everything = capsys.readouterr().out
    assert main(["help", name, "all"]) == 0
    assert capsys.readouterr().out == everything
    assert len(short.splitlines()) <= 40
    whole = short
    flags = {flag.names[0] for flag in COMMANDS[name].flags if flag.how == "flag"}
    short, everything = (
        text.partition("\nMore\n")[0].partition("\nOther questions\n")[0] for text in (short, everything)
    )
    of_short, of_all = (
        re.findall(r"^  (?:-\w, )?(--[a-z][a-z0-9-]*)", text, re.MULTILINE) for text in (short, everything)
    )
    assert {*of_all} == flags
    assert {*of_short} <= flags
    assert len(of_short) <= 12
    assert len(of_short) == min(12, len(flags)) or "--SIZE VALUE" in short
    assert len(page(name, COMMANDS[name]).examples) <= 2
    assert ("--help all" in whole) == (len(of_short) < len(flags))


def test_the_help_of_all_commands_has_the_twelve_in_groups_and_the_others_under_more():
    grouped = [name for names in COMMAND_GROUPS.values() for name in names.split()]
    assert len(grouped) == 12
    assert sorted([*grouped, *MERGED]) == sorted(COMMANDS)
    assert {*MERGED.values()} <= {*grouped}
    for name, main_command in MERGED.items():
        assert f"--{name}" not in {each for flag in COMMANDS[main_command].flags for each in flag.names}


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fit", "gpt2 --budget 2GB --procedures bp"),
        ("rules", "gpt2"),
        ("errata", "E2"),
        ("complexity", ""),
        ("formulas", "attention"),
        ("sweep", "gpt2 --seq-len 8,16"),
        ("place", "gpt2 --mesh dp=2 --placement ddp --batch-size 2"),
    ],
)
def test_a_merged_command_is_a_flag_of_one_of_the_twelve(name, words, capsys):
    lines = [f"{name} {words}", f"more {name} {words}", f"{MERGED[name]} {words} --{name}"]
    answers = [main(shlex.split(line)) or capsys.readouterr().out for line in lines]
    assert len({*answers}) == 1


def test_cite_writes_the_works_of_price_books_and_procedures(capsys):
    """Every entry is of a known name, and every name whose source is a publication has one."""
    assert main(["cite"]) == 0
    every = capsys.readouterr().out
    named = {**BOOKS, **{name: formula.book for name, formula in formulas().items()}, **LEARNING, **INFERENCE}
    for name, cited in named.items():
        assert main(["cite", name]) == 0
        entries = capsys.readouterr().out.strip().split("\n\n")
        assert all(entry in every for entry in entries)
        assert len(entries) > 2 or "et al" not in cited.source, name
    with Path(learncost.__file__).with_name("cli").joinpath("references.toml").open("rb") as file:
        assert {name for work in tomllib.load(file).values() for name in work["of"].split()} <= {*named}
    assert "no price book or learning procedure is called 'palms'; did you mean 'palm'" in refused(
        ["cite", "palms"], capsys
    )


def test_the_list_of_other_commands(capsys):
    assert main(["more"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{main_command} --{name}" in listed for name, main_command in MERGED.items())
    for name, main_command in MERGED.items():
        assert main([name, "--help"]) == 0
        own = capsys.readouterr().out
        assert main([main_command, f"--{name}", "--help"]) == 0
        assert capsys.readouterr().out == own
    assert main(["more", "nothing"]) == 2


def test_common_flags_are_flags_of_their_commands():
    for name, row in FLAGS.items():
        assert bool(row.brief) <= bool(row.common) or name == "model", f"{name} has a brief meaning that nothing shows"
        for command in row.common.split():
            assert name in {flag.name for flag in COMMANDS[command].flags}, (name, command)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_sentences_and_groups(name):
    help_page = page(name, COMMANDS[name], everything=True)
    assert help_page.about.endswith(".")
    assert help_page.examples, "every command has examples"
    for flag in (flag for flags in help_page.groups.values() for flag in flags):
        assert flag.meaning.endswith("."), flag
        assert flag.meaning.split()[0] not in ("Of", "So", "By"), flag
        assert not any(part in flag.typed + flag.meaning for part in ("--empty", "KEYWORD", '""', "None", "STR")), flag
    for command, meaning in help_page.examples:
        assert meaning.endswith(".")
        own, *words = shlex.split(command.partition("learncost ")[2])
        assert own == name
        read(own, COMMANDS[own].flags, words)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == learncost.__version__


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("line", ["cost gpt2", "compare gpt2", "errata", "errata e2", "list", "list models"])
def test_screens_are_plain_and_narrow_when_piped(line, capsys):
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert not any(text.endswith(" ") for text in out.splitlines())


@pytest.mark.parametrize("format", ["table", "json", "csv", "md", "latex"])
@pytest.mark.parametrize("command", ["cost", "compare"])
def test_formats(command, format, capsys):
    assert main([command, "gpt2", "--format", format]) == 0
    out = capsys.readouterr().out
    assert {"json": "{", "csv": "", "md": "**gpt2", "latex": r"% \usepackage{booktabs}", "table": "gpt2"}[
        format
    ] in out[:24]
    assert format not in ("md", "latex") or "gpt2" in out


def test_lists_come_from_the_registries(capsys):
    assert main(["list", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    for entry in answer:
        assert main(["list", entry["what"], "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert len(listed) == entry["count"] > 0
        keys = {key for entry in listed for key in entry}
        assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,14}", key) for key in keys), keys
        numbers = [value for entry in listed for value in entry.values() if isinstance(value, str)]
        assert not any(re.fullmatch(r"[\d,.]+", value) for value in numbers), "numbers are no strings"
        assert main(["list", entry["what"]]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(("what", "ask"), [("models", lc.list_models), ("devices", lc.list_devices)])
def test_lists_in_python_are_those_of_the_command(what, ask, capsys):
    assert main(["list", what, "--json"]) == 0
    assert [*ask()] == json.loads(capsys.readouterr().out)
    assert {lc.device(row["name"]).name for row in lc.list_devices(like="H100")} == {
        row["name"] for row in lc.list_devices() if "h100" in str(row).lower()
    }
    assert len(lc.list_models(like="gpt2-xl")) == 1
    with pytest.raises(lc.InputError, match=f"no {what} contain 'xyzzy'"):
        ask(like="xyzzy")


def test_lists_of_what_has_a_text_in_it(capsys):
    names = {}
    for flags in ("", "--like BF16", "--like=nf4-double"):
        assert main(["list", "precisions", *flags.split(), "--json"]) == 0
        names[flags] = {load["name"]: str(load).lower() for load in json.loads(capsys.readouterr().out)}
    assert {*names["--like BF16"]} == {name for name, entries in names[""].items() if "bf16" in entries}
    assert "nf4-double" in names["--like=nf4-double"]
    assert 0 < len(names["--like BF16"]) < len(names[""])
    assert "no precisions contain 'xyzzy'" in refused(["list", "precisions", "--like", "xyzzy"], capsys)


def test_errata_as_data(capsys):
    assert main(["errata", "--json"]) == 0
    assert [entry["id"] for entry in json.loads(capsys.readouterr().out)] == [erratum.id for erratum in errata()]
    assert [erratum.id for erratum in errata("e2")] == ["E2"]
    assert main(["errata", "E2", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["books"]["paper-corrected"] == "corrected"
    assert main(["errata", "--format", "md"]) == 0
    assert capsys.readouterr().out.count("\n|") == len(errata()) + 2
    assert main(["errata", "--like", "Weight_Update", "--json"]) == 0
    with_text = {entry["id"] for entry in json.loads(capsys.readouterr().out)}
    assert with_text == {erratum.id for erratum in errata() if "weight_update" in str(erratum).lower()}
    assert "no errata contain 'xyzzy'" in refused(["errata", "--like", "xyzzy"], capsys)
    assert "give one of them" in refused(["errata", "E2", "--like", "mha"], capsys)


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("cost gpt2", "learncost.reports.cost.prepare"),
        ("calibrate --out own.json", "learncost.cli.calibrate.measure"),
        ("sweep gpt2 --seq-len 1:100 --output rows.csv", "learncost.cli.sweep.compute"),
        ("search gpt2 --on DGX-H100 --devices 8", "learncost.reports.search.space.SearchSpace.look"),
        ("verify", "learncost.cli.verify.compute"),
    ],
)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_every_command_as_ctrl_c_does(name, line, doing, monkeypatch, tmp_path, capsys):
    number = getattr(signal, name)

    def interrupt(*_: object, **__: object) -> None:
        signal.raise_signal(number)
        pytest.fail("it went on")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doing, interrupt)
    before = signal.getsignal(number)
    assert main(line.split()) == 130
    assert capsys.readouterr().out == ""
    assert [*tmp_path.iterdir()] == []
    assert signal.getsignal(number) is before


def test_what_nohup_has_ignored_stays_so(monkeypatch):
    heard = []
    monkeypatch.setattr(
        "learncost.reports.cost.prepare", lambda *_, **__: heard.append(signal.getsignal(signal.SIGHUP))
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(AttributeError):  # of what the pretended run is not
            main(["cost", "gpt2"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIG_IGN]


def test_mistakes_of_ours_are_not_hidden(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("learncost.reports.cost.prepare", fail)
    with pytest.raises(ZeroDivisionError):
        main(["cost", "gpt2"])


def test_cost_imports_little():
    heavy = "torch sympy jax pandas matplotlib scipy transformers numpy polars rich learncost.interpreter"
    code = (
        "import sys; from learncost.cli.command import main; code = main(['cost', 'gpt2']);"
        f"print(sorted(set(sys.modules) & set({heavy.split()!r})), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "880,690,382,336" in done.stdout


@pytest.mark.parametrize(("command", "most"), [("cost gpt2", 70), ("memory gpt2", 110), ("emit attention", 96)])
def test_a_command_imports_few_modules(command, most):
    code = (
        f"import sys; from learncost.cli.command import main; main({command.split()!r});"
        "print(sum(name.partition('.')[0] == 'learncost' for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stderr) <= most


def test_a_reader_that_goes_away():
    process = subprocess.Popen([*COMMAND, "cost", "gpt2", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "cost", "gpt2"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "learncost: cannot write the result: No space left on device\n"


def test_a_stream_without_the_sign_for_times():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "cost", "gpt2"], capture_output=True, text=True, env=environment, check=True)
    assert "attention ? 12" in done.stdout


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal(colour):
    pty = pytest.importorskip("pty")
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    if not colour:
        environment["NO_COLOR"] = "1"
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, "cost", "gpt2"], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    screen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        screen += part
    os.close(ours)
    assert process.wait() == 0
    text = screen.decode()
    assert "880,690,382,336" in text
    assert "\x1b[1m" in text  # bold is no colour
    assert "\x1b[3" not in text


@pytest.mark.parametrize(
    "found",
    [
        lambda: learncost.cost("gpt2", seq_len=64),
        lambda: learncost.memory("gpt2", seq_len=64),
        lambda: learncost.fit("gpt2", "8GB", seq_len=64, procedures="bp"),
        lambda: learncost.sweep("gpt2", procedure="bp,pepita", seq_len=range(1, 99)),
        lambda: learncost.conventions("gpt2", seq_len=64),
        lambda: learncost.explain("gpt2", "attention"),
        lambda: learncost.explain("softmax"),
        lambda: learncost.formulas("gpt2", "mlp"),
        lambda: learncost.formulas("mha"),
        lambda: learncost.compare("gpt2", seq_len=64),
    ],
)
def test_answers_show_themselves(found):
    """In a notebook as a table, in text no wider than 80 columns."""
    answer = found()
    assert "<table" in answer._repr_html_() or "<math" in answer._repr_html_()
    assert repr(answer) == str(answer)
    assert max(map(len, str(answer).splitlines())) <= 80
    assert answer.to_dict()


@pytest.mark.parametrize(
    ("command", "usual", "other"),
    [
        (
            "cost",
            "--optimizer adamw --precision bf16-masters --by kind",
            "--optimizer AdamW --precision BF16-Masters --by Kind",
        ),
        ("cost", "--price-book matmul --tokens 1000000", "--price-book MatMul --tokens 1,000,000"),
        ("cost", "--hidden-size 1200", "--hidden-size 1_200"),
        ("compare", "--procedure bp,pepita", "--procedures BP,Pepita"),
        ("memory", "--procedure bp,pepita --budget 8GB", "--procedures bp,Pepita --budget 8GB"),
        ("memory", "--engine graph,numpy", "--engine Graph,NumPy"),
        (
            "fit",
            "--budget 8GB --procedure bp --plan chunked-loss --engine graph",
            "--budget 8g --procedures BP --plan CHUNKED-LOSS --engine Graph",
        ),
        ("cost", "--train all", "--train ALL"),
        ("cost", "--plan flash,recompute=gelu+norm", "--plan Flash,Recompute=gelu+norm"),
        ("cost", "--batch-size 1024", "--Batch_Size 1,024"),
    ],
)
def test_names_and_counts_as_people_write_them(command, usual, other, capsys):
    """On the command line and in Python."""
    answers = []
    for flags in (usual, other):
        assert main([command, "gpt2", "--n-layer", "2", "--seq-len", "8", *flags.split(), "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
        words = flags.split()
        keywords = {
            name[2:].replace("-", "_").lower(): value for name, value in zip(words[::2], words[1::2], strict=True)
        }
        from_python = getattr(learncost, command)("gpt2", n_layer=2, seq_len=8, **keywords)
        answers.append(json.loads(from_python.show("json")))
    assert all(answer == answers[0] for answer in answers[1:])


def test_a_name_of_an_argument_and_its_other_name_do_not_go_together():
    with pytest.raises(learncost.InputError, match="procedures and procedure are the same option"):
        learncost.compare("gpt2", procedures="bp", procedure="pepita")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_question_has_a_schema(name, capsys):
    """What the schema says is what the question takes."""
    assert main([name, "--help", "--json"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["type"] == "object"
    assert {*schema["required"]} <= {*schema["properties"]}
    parameters = {flag.name for flag in COMMANDS[name].flags if flag.how != "flags"} - {
        "format",
        "json",
        "output",
        "plot",
        *(flag.name for flag in COMMANDS[name].importing),  # in Python from_module takes them
    }
    assert parameters <= {*schema["properties"], "output"}
    for description in schema["properties"].values():
        assert description["description"].endswith((".", ".)")), description
        assert (
            description.get("default") is None
            or "enum" not in description
            or description["default"] in description["enum"]
        ), description


FORMATS = {"table": "", "json": "{[", "csv": "", "md": "*", "latex": "%", "html": "<"}
ANSWERS = ("cost gpt2 --seq-len 8", "memory gpt2 --seq-len 8", "errata E2", "list plans")


@pytest.mark.parametrize("line", ANSWERS)
def test_every_answer_is_written_to_a_file_in_every_format(line, tmp_path, capsys):
    for format, begins in FORMATS.items():
        path = tmp_path / format
        assert main([*line.split(), "--format", format]) == 0
        out = capsys.readouterr().out
        assert not begins or out[0] in begins
        assert main([*line.split(), "--format", format, "-o", str(path)]) == 0
        assert capsys.readouterr().out == ""
        assert path.read_text(encoding="utf-8") == out


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    for name in (".", "no/answer"):
        assert "cannot write" in refused(["errata", "--output", str(tmp_path / name)], capsys)


@pytest.mark.parametrize(
    ("typed", "some"),
    [
        ("me", {"memory"}),
        ("memory gpt2-", {"gpt2-xl"}),
        ("memory --bs 4 bert-l", {"bert-large"}),
        ("memory gpt2 --on rtx", {"RTX-4090"}),
        ("search gpt2 --on dgx-h", {"DGX-H100"}),
        ("cost gpt2 --plan flash,chu", {"flash,chunked-loss"}),
        ("cost gpt2 --gradient", {"--gradient-checkpointing"}),
        ("memory --f", {"--fit", "--format"}),
        ("explain att", {"attention"}),
        ("figure cr", {"crossover"}),
        ("list dev", {"devices"}),
        ("nothing ", set()),
    ],
)
def test_a_shell_completes_commands_flags_models_and_devices(typed: str, some: set[str]) -> None:
    found = list(following(typed.split(" ")))
    assert some <= {*found}
    last = typed.split(" ")[-1].lower()
    assert all(each.lower().startswith(last) for each in found)


def test_every_device_that_is_completed_is_the_one_of_its_name() -> None:
    assert {short_name(name): device(short_name(name)).name for name in devices()} == {
        short_name(name): name for name in devices()
    }


def test_bash_asks_for_what_follows() -> None:
    program = f"{completion('bash')}\nCOMP_WORDS=(learncost memory gpt2 --on l4); COMP_CWORD=4; _learncost\n"
    lines = f'learncost() {{ {shlex.quote(sys.executable)} -m learncost.cli.command "$@"; }}\nexport -f learncost\n'
    program += 'printf "%s\\n" "${COMPREPLY[@]}"'
    ran = subprocess.run(["bash", "-c", lines + program], capture_output=True, text=True)
    assert {"L40S", "L4"} <= {*ran.stdout.split()}
