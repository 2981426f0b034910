"""Processes of Python without its start, and several as torchrun starts them, without torchrun."""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path

WORKER = Path(__file__).with_name("gloo_worker.py")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def forked(command, env=None, **settings):
    """`subprocess.Popen` of Python on a module or a script, as a fork of this process: what has been imported here,
    PyTorch above all, is not imported again, which takes seconds."""
    given = dict(os.environ if env is None else env)
    return subprocess.Popen([sys.executable, *command], preexec_fn=lambda: _become(command, given), **settings)


def _become(command, environment):
    """Run Python on a command and end, in a process that has just been forked."""
    code = 1
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as exec would; the parent waits for the end of one of them
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(place, "rw"[place > 0], closefd=False) for place in range(3))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        atexit._clear()  # what the parent has registered is the parent's
        gc.enable()
        warnings.simplefilter("ignore")
        *option, name = command[: 1 + (command[0] == "-m")]
        sys.argv = [name, *command[1 + len(option) :]]
        if option:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def begun(number, command, **settings):
    """So many processes of a command, which meet."""
    port = str(free_port())
    everyone = {**os.environ, "WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    everyone |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return [
        forked(
            command,
            env=everyone | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **settings,
        )
        for rank in range(number)
    ]


def ended(processes, seconds=240):
    """Exit codes and what was said, by process; none is left."""
    try:
        printed = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], [out + err for out, err in printed]


def worked(number, jobs, folder, worker=WORKER.name):
    """What so many workers found in the steps of their jobs. Trainings leave their folders."""
    import_module(worker.removesuffix(".py"))  # what it imports is imported here, for all of them
    codes, printed = ended(begun(number, [str(WORKER.with_name(worker)), json.dumps(jobs), str(folder)]))
    assert codes == [0] * number, "\n".join(printed)
    return json.loads((folder / "steps.json").read_text()) if jobs.get("steps") else None
