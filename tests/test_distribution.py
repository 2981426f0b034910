"""What is shipped: metadata, the README as an index shows it, what the emitted C finds, `python -m learncost`."""

import ctypes
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from learncost.backends.placed.standalone import LOAD

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def hook(monkeypatch):
    """The hook of the build, without the package that calls it."""
    stand_in = ModuleType("hatchling.metadata.plugin.interface")
    stand_in.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_somewhere_outside_of_the_repository(hook):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = [target for _, target in hook.LINK.findall(text)]
    assert relative
    assert all((ROOT / target.partition("#")[0]).is_file() for target in relative)
    assert not hook.LINK.search(hook.shown(text, None))
    assert "](docs/" not in hook.shown(text, None)
    address = "https://example.org/learncost/"
    assert hook.shown("[a](docs/train.md#b) normalize'[d](dZ) ![p](docs/static/p.png)", address) == (
        "[a](https://example.org/learncost/blob/main/docs/train.md#b) normalize'[d](dZ)"
        " ![p](https://example.org/learncost/raw/main/docs/static/p.png)"
    )


def test_the_source_distribution_has_what_tests_read():
    shipped = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    tracked = {"src", "tests", "docs", "examples", "benchmarks", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    assert tracked <= {*shipped}
    assert all((ROOT / name).exists() for name in shipped)


def test_every_extra_that_a_message_names_is_one():
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    extras = {part.partition("]")[0] for part in source.split("learncost[")[1:] if part[0] != "{"}
    extras |= {part.partition("'")[0] for part in source.split("to_install('")[1:]}
    assert extras
    assert extras <= {*PROJECT["project"]["optional-dependencies"]}


def test_python_m(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["learncost", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("learncost", run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out.strip() == PROJECT["project"]["version"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("name", ["libtorch_cpu.so", "libtorch_cpu.dylib", "other"])
def test_the_emitted_c_finds_the_library_of_pytorch(name, tmp_path, monkeypatch):
    # As on macOS: the library has another name, and the compiler no OpenMP.
    (tmp_path / "lib").mkdir()
    (tmp_path / "blas.c").write_text("void sgemm_(void) {} void dgemm_(void) {}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "lib" / name, tmp_path / "blas.c"], check=True)
    compiler = tmp_path / "clang"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-fopenmp*) echo unsupported >&2; exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    names = {"ctypes": ctypes, "os": os, "subprocess": subprocess, "tempfile": tempfile}
    names |= {"torch": SimpleNamespace(__file__=str(tmp_path / "__init__.py")), "SimpleNamespace": SimpleNamespace}
    names |= {"KERNELS": ("has",)}
    names["SOURCE"] = "static void *own; void bind(void *s, void *d) { own = s; } void has(int *to) { *to = own != 0; }"
    exec(LOAD, names)
    number = ctypes.c_int(7)
    names["load"]().has(SimpleNamespace(data_ptr=lambda: ctypes.addressof(number)))
    assert number.value == (name != "other")
