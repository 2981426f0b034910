"""The Python reference leaves no public name out, says what every argument and field is, and its examples are true."""

import doctest
import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import learncost as lc

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

import reference

pytestmark = pytest.mark.filterwarnings("error")

# Its example needs transformers, which takes seconds to import: test_from_module.py runs it.
ELSEWHERE = {"from_module"}


def run_example(name):
    """Run the example of a public name; a difference from what stands there fails."""
    text = reference.example_of(name)
    test = doctest.DocTestParser().get_doctest(text, {"lc": lc}, name, None, 0)
    assert test.examples, f"lc.{name} has no example"
    failures = []
    doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("name", sorted(set(reference.NAMES) - ELSEWHERE))
def test_the_example_prints_what_stands_there(name):
    run_example(name)


@pytest.mark.parametrize("name", reference.NAMES)
def test_everything_is_described(name):
    thing = reference.public(name)
    docstring = reference.docstring(thing)
    assert docstring.short_description, f"lc.{name} has no docstring"
    parameters = set(reference.parameters(name))
    described = reference.described(name) if parameters else {}
    assert parameters - set(described) == set(), f"arguments of lc.{name} that nothing is said of"
    named_here = {
        name_described
        for param in docstring.params
        if param.args[0] == "param"
        for name_described in param.arg_name.split(", ")
    }
    assert named_here <= parameters or issubclass(thing, Exception), f"arguments that lc.{name} does not have"
    if is_dataclass(thing):
        assert set(reference.attributes(name)) == {
            field.name for field in fields(thing) if not field.name.startswith("_")
        }
    elif not isinstance(thing, type):
        assert docstring.returns, f"nothing is said of what lc.{name} gives"
    if isinstance(thing, type):
        assert [member for member, *_, text in spoken(name) if not text] == [], f"members of lc.{name}"


def spoken(name):
    for member, value, _ in reference.members(name):
        yield member, (value.fget if isinstance(value, property) else value).__doc__


def test_every_public_name_has_its_place():
    pages = reference.pages()
    for name in set(lc.__all__) - {"__version__"}:
        assert f"# {name}\n" in pages[f"api/{name.lower()}.md"]
        assert f"[`{name}`]({name.lower()}.md)" in pages["api/index.md"]


def test_links_between_the_pages_lead_somewhere():
    pages = reference.pages()
    for page, text in pages.items():
        for target in re.findall(r"`\]\(([^)#]+)\)", text):
            assert f"api/{target}" in pages, (page, target)
