"""Several processes as torchrun starts them, without torchrun."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("gloo_worker.py")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def begun(number, command, **settings):
    """So many processes of a command, which meet."""
    port = str(free_port())
    everyone = {**os.environ, "WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    everyone |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return [
        subprocess.Popen(
            [sys.executable, *command],
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
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], [out + err for out, err in said]


def worked(number, jobs, folder, worker=WORKER.name):
    """What so many workers found in the steps of their jobs. Trainings leave their folders."""
    codes, said = ended(begun(number, [str(WORKER.with_name(worker)), json.dumps(jobs), str(folder)]))
    assert codes == [0] * number, "\n".join(said)
    return json.loads((folder / "steps.json").read_text()) if jobs.get("steps") else None
