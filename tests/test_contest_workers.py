"""A contest on processes of Dask: the same as in one process; what is wrong is one line."""

import os
import signal
import threading

import pytest

from contests import entrants, held
from learncost.cli.command import main
from learncost.ir.errors import InputError
from learncost.training.contest.contest import Contest
from learncost.training.contest.workers import workers

NAMES = entrants("bp,pepita:paper", "stable")


def learned(contest: Contest) -> list[object]:
    """All that does not depend on the clock."""
    return [
        (
            result.entrant,
            result.search and (result.search.best, len(result.search.tried)),
            [(outcome.seed, outcome.losses, outcome.after, outcome.diverged) for outcome in result.outcomes],
        )
        for result in contest.results
    ]


def test_processes_learn_what_one_process_does_and_end_when_asked():
    more = {"names": NAMES, "rates": (), "seeds": (1, 0)}
    alone = held("mlp", "steps:2", **more)
    stop = threading.Event()
    with workers("2", stop.is_set) as two:
        beside = held("mlp", "steps:2", workers=two, stop=stop.is_set, **more)
        assert learned(beside) == learned(alone)
        assert [outcome.seed for outcome in beside.results[0].outcomes] == [1, 0]
        places = dict(two(pid, None, [(), ()], Silent()))
        assert os.getpid() not in places.values()
        with pytest.raises(InputError, match="training processes ended early"):
            [*two(die, None, [()], Silent())]
        stop.set()
        assert held("mlp", "steps:2", workers=two, stop=stop.is_set, **more).stopped


def pid(shared, messages):
    return os.getpid()


def die(shared, messages):
    os.kill(os.getpid(), signal.SIGKILL)


class Silent:
    def say(self, text):
        pass


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ("0", "workers must be a number of processes from 1 to 999, or the address of a Dask scheduler"),
        ("many", "not 'many'"),
        ("tcp://127.0.0.1:9", "no scheduler of Dask answers at tcp://127.0.0.1:9"),
    ],
)
def test_what_is_no_worker_is_one_line(named, line, capsys, monkeypatch):
    monkeypatch.setattr("learncost.training.contest.workers.SCHEDULER_TIMEOUT", 1)
    assert main(["contest", "digits", "--budget", "steps:1", "--workers", named]) == 2
    message = capsys.readouterr().err
    assert line in message
    assert message.count("\n") == 1


def test_seconds_are_not_shared(capsys):
    assert main(["contest", "digits", "--budget", "seconds:1", "--workers", "2"]) == 2
    assert "--workers cannot be combined with a budget in seconds" in capsys.readouterr().err
