"""A step in place as one file that requires only PyTorch and a C compiler."""

from __future__ import annotations

from learncost.backends.placed.program import InPlaceProgram

LOAD = '''\
def load():
    """The kernels, compiled by $CC or cc; products inside of them are those of PyTorch's library, where it has any."""
    compiler = os.environ.get("CC", "cc")
    options = ["-O3", "-march=native", "-ffast-math", "-fPIC", "-std=gnu11"]
    with tempfile.TemporaryDirectory() as folder:
        source, unlinked, linked = (os.path.join(folder, name) for name in ("kernels.c", "kernels.o", "kernels.so"))
        with open(source, "w", encoding="utf-8") as file:
            file.write(SOURCE)
        for threads in (["-fopenmp"], []):  # without OpenMP, which the compiler of macOS lacks, on one thread
            try:
                compiling = [compiler, *options, *threads, "-c", source, "-o", unlinked]
                subprocess.run(compiling, check=True, capture_output=bool(threads))
                linking = [compiler, "-shared", *threads, unlinked, "-o", linked, "-lm"]
                subprocess.run(linking, check=True, capture_output=bool(threads))
                break
            except subprocess.CalledProcessError:
                if not threads:
                    raise
        library = ctypes.CDLL(linked)
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    names = [os.path.join(folder, f"libtorch_cpu.{ending}") for ending in ("so", "dylib")]  # Linux, macOS
    products = next((name for name in names if os.path.exists(name)), None)
    if products:
        found = ctypes.CDLL(products)
        addresses = (getattr(found, name, None) for name in ("sgemm_", "dgemm_"))
        library.bind(*(address and ctypes.cast(address, ctypes.c_void_p) for address in addresses))

    def taking_tensors(function):
        def of(given):
            return ctypes.c_ssize_t(given) if isinstance(given, int) else ctypes.c_void_p(given.data_ptr())

        return lambda *arguments: function(*map(of, arguments))

    return SimpleNamespace(**{name: taking_tensors(getattr(library, name)) for name in KERNELS})'''

USE = """\
To run it, with `given` a dictionary of tensors by the names that PLACES has in quotes:

    m, kernels = lay_out(given, torch.empty(BYTES, dtype=torch.uint8)), load()
    step(m, kernels)
    print(m.loss)
"""


def standalone(placed: InPlaceProgram, title: str) -> str:
    """Return the file: documentation, the step, its layout, the kernels in C and their compilation."""
    imports = "import ctypes\nimport math\nimport os\nimport subprocess\nimport tempfile\n"
    text = placed.text.replace("import math\n", imports, 1)
    names = "".join(f'    "{function.name}",\n' for function in placed.functions)
    assert '"""' not in placed.c
    c = placed.c.replace("\\", "\\\\")
    return f'"""{title}\n{USE}"""\n\n{text}KERNELS = (\n{names})\nSOURCE = """\n{c}"""\n\n\n{LOAD}\n'
