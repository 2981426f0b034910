"""The mutations of central code that benchmarks/mutations.py applies: each still changes one place, and is noticed."""

import sys
from pathlib import Path

import pytest
from mutations import PACKAGE, Mutation, failing, main, mutations

ROOT = Path(__file__).parent.parent


def test_every_mutation_changes_one_place_and_names_its_tests():
    """A text that has changed is put right in benchmarks/mutations.toml."""
    listed = mutations()
    assert len(listed) >= 30
    for mutation in listed:
        assert mutation.tests
        assert all((ROOT / name).is_file() for name in mutation.tests), mutation.name
        if mutation.file.endswith(".py"):
            compile(mutation.text(), mutation.file, "exec")


@pytest.mark.parametrize("old", ["nothing that is there", "import"])
def test_a_text_that_does_not_occur_once_is_an_error(old):
    with pytest.raises(ValueError, match="not once"):
        Mutation("m", "interpreter/operation.py", old, "", ()).text()


def test_a_survivor_fails_and_the_log_is_gone_on_with(tmp_path, monkeypatch, capsys):
    listed = [Mutation(name, "__main__.py", "main", "version", ("tests/x.py",)) for name in ("one", "two")]
    monkeypatch.setattr("mutations.mutations", lambda: listed)
    monkeypatch.setattr(
        Mutation, "text", lambda self: (PACKAGE / self.file).read_text(encoding="utf-8") + f"# {self.name}"
    )
    asked = []

    def found(sources, tests):
        text = (sources / "learncost" / "__main__.py").read_text(encoding="utf-8")
        asked.append(text.rpartition("# ")[2] if "# " in text else "unchanged")
        return "tests/x.py::test" if text.endswith("# one") else ""

    monkeypatch.setattr("mutations.failing", found)
    monkeypatch.setattr(sys, "argv", ["mutations.py", "--log", str(tmp_path / "log")])
    assert main() == 1
    assert asked == ["unchanged", "one", "two"]
    assert capsys.readouterr().out == ("one: tests/x.py::test\ntwo: SURVIVED\n1 of 2 mutations were noticed\n")
    assert main() == 1
    assert asked == ["unchanged", "one", "two"]


def test_tests_run_on_the_sources_that_are_given(tmp_path):
    """A package that says another version than this one's."""
    (tmp_path / "learncost").mkdir()
    (tmp_path / "learncost" / "__init__.py").write_text('raise RuntimeError("other sources")\n')
    test = tmp_path / "test_it.py"
    test.write_text("def test_it():\n    import learncost\n")
    assert failing(tmp_path, [str(test)]).endswith("test_it.py::test_it")
