"""Every command over every kind of model: a sample of `python -m tests.commands` and of `python -m tests.fuzz`."""

import random
from itertools import combinations

import pytest

import fuzz_commands
import fuzz_damaged
import fuzz_mutations
from commands.answer import faults
from commands.called import call, ending
from commands.design import about_models, covering, lines, others, subjects
from commands.expected import reason, refused_as_listed
from sampling import sampled

SUBJECTS = list(subjects())
BY_FAMILY = {}
for subject in SUBJECTS:
    BY_FAMILY.setdefault(subject.family, []).append(subject)


def wrong(row, line, name=""):
    """What is wrong with what a command line gives; `name`: of a preset under its usual class."""
    answer = call(line)
    if ending(answer):
        return ending(answer)
    if answer.code == 0:
        return "; ".join(faults(line, answer.out, screens=False))
    why = reason(line.split()[0], answer.refusal)
    return "" if why and (not name or refused_as_listed(row, name)) else answer.refusal


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize("family", sampled(BY_FAMILY, 3))
def test_a_sample_of_every_family_answers_or_says_why_not(family):
    chance = random.Random(family)
    subject = next(candidate for candidate in BY_FAMILY[family] if candidate.usual)
    other = chance.choice(BY_FAMILY[family])
    tasks = [(row, line, subject.name) for row, line in chance.sample(list(lines(subject)), 1)]
    tasks += [(row, line, "") for row, line in chance.sample(list(lines(other)), 1)]
    problems = {line: wrong(row, line, name) for row, line, name in tasks}
    assert not {line: problem for line, problem in problems.items() if problem}


def test_a_sample_of_the_commands_that_are_about_no_model():
    problems = {line: wrong(row, line) for row, line in random.Random(0).sample(list(others()), 25)}
    assert not {line: problem for line, problem in problems.items() if problem}


def test_a_covering_has_every_pair_of_values():
    options = [["", "a", "b"], ["", "c"], ["", "d", "e", "f"]]
    rows = covering(options)
    for (i, first_values), (j, two) in combinations(enumerate(options), 2):
        assert {(row[i], row[j]) for row in rows} == {(a, b) for a in first_values for b in two}
    assert len(rows) < 3 * 2 * 4


def test_every_preset_is_asked_every_command_plainly():
    for subject in SUBJECTS[::40]:
        plain = [row.split()[0] for row, _ in lines(subject)]
        assert set(plain) == set(about_models())


def test_a_fault_is_told():
    assert "ZeroDivisionError" in ending(call("--raise")) or call("--raise").code == 2
    assert faults("cost gpt2 --json", '{"a": NaN}') == ["no JSON: NaN is no number"]
    assert faults("memory gpt2 --json", '{"peak": 3, "split": {"a": 1}, "curve": [{"bytes": 3}]}')
    assert faults("cost gpt2", "x" * 81) == [f"a line of 81 columns: {'x' * 81!r}"]
    assert faults("cost gpt2 --format csv", "a,b\n1,nan\n") == ["'nan' among numbers"]


def test_command_lines_of_chance_end_with_a_result_or_one_line():
    assert fuzz_commands.fuzz(10, seed=1) == []


def test_mutated_configurations_end_with_a_result_or_one_line():
    """A sample of `python -m tests.fuzz --mutations`."""
    assert fuzz_mutations.fuzz(15, seed=1) == []


def test_damaged_files_end_with_a_result_or_one_line():
    """A sample of `python -m tests.fuzz --damaged`."""
    assert fuzz_damaged.fuzz(20, seed=5) == []


def test_what_is_fuzzed_says_a_traceback(monkeypatch):
    """Of a package with a mistake, what reads its files has something to say."""

    def fail(*_, **__):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("learncost.models.argument.read_path", fail)
    assert all("a mistake" in fault for fault in fuzz_mutations.fuzz(3, seed=1))
    assert len(fuzz_mutations.fuzz(3, seed=1)) == 3
