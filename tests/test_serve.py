"""The explorer's server: what it answers, what it refuses, and that its numbers are those of the command line."""

import asyncio
import builtins
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout, suppress

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from starlette.testclient import TestClient

import learncost as lc
from answering import Here
from learncost.cli.command import COMMANDS, main
from learncost.models.argument import presets
from learncost.reports.question import flags_of, in_flags
from learncost.viz.data.growth import growth
from learncost.viz.document import document
from learncost.viz.serve import guard, worker
from learncost.viz.serve.app import application
from learncost.viz.serve.command import _listening as listening
from learncost.viz.serve.command import server as making
from learncost.viz.serve.guard import BODY
from learncost.viz.serve.pool import OVERHEAD, AnswerCache, ProcessPool
from learncost.viz.serve.replies import Answer
from learncost.viz.serve.runs import thinned
from learncost.viz.views import VIEWS

PORT = 8642
BASE = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def client():
    with TestClient(application(PORT, answers=Here()), BASE) as test_client:
        yield test_client


def refused(answer, status=400):
    """The one line that a refusal is."""
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    (message,) = answer.json().values()
    assert "\n" not in message
    return message


# The numbers.

SIZES = some.fixed_dictionaries(
    {},
    optional={
        "seq-len": some.integers(1, 1024),
        "batch-size": some.integers(1, 9),
        "procedure": some.sampled_from(["bp", "pepita", "fa"]),
        "price-book": some.sampled_from(["run", "matmul", "paper"]),
        "optimizer": some.sampled_from(["sgd", "adamw", "AdamW"]),
        "n_layer": some.integers(1, 9),
        "dtype": some.sampled_from(["fp32", "bf16-masters"]),
    },
)


@pytest.mark.slow  # tests/test_explorer_agrees.py draws them
@given(some.sampled_from(["gpt2", "bert-base"]), SIZES)
@settings(max_examples=6, deadline=None)
def test_numbers_are_those_of_the_command_line(client, model, flags):
    ops = [op for name, value in flags.items() for op in (f"--{name}", str(value))]
    with redirect_stdout(io.StringIO()) as screen, redirect_stderr(io.StringIO()) as error:
        code = main(["cost", model, *ops, "--by", "equation", "--json"])
    answer = client.get("/api/document", params={"model": model, **flags})
    if code:
        assert in_flags(refused(answer), COMMANDS["cost"].flags, ops) in " ".join(error.getvalue().split())
        return
    document, cost = answer.json(), json.loads(screen.getvalue())
    for name in ("maccs", "flops"):
        assert int(document["totals"][name]) == cost["total"][name]
        assert sum(int(line.get(name, 0)) for line in document["lines"]) == cost["total"][name]
    assert int(document["totals"]["bytes"]) == sum(row["bytes"] for row in cost["rows"])
    assert int(document["totals"]["parameters"]) == cost["parameters"]


def test_time_is_that_of_the_command_line(client):
    settings = {"model": "gpt2", "on": "a100 sxm 40gb", "seq_len": 256}
    totals = client.get("/api/document", params=settings).json()["totals"]
    timing = lc.cost(**settings).timing
    assert (totals["seconds"], totals["low"], totals["high"]) == (timing.seconds, timing.time.low, timing.time.high)


def test_halves_of_a_causal_square_are_written_as_whole_numbers(client):
    keywords = {"model": "gpt2", "n_layer": 2, "price_book": "causal-half", "seq_len": 7}
    response = client.get("/api/document", params=keywords)
    assert response.status_code == 200, response.text
    assert int(response.json()["totals"]["flops"]) == lc.cost(**keywords).total.flops
    comparison = lc.compare("gpt2", procedures="bp,recompute", price_book="causal-half", n_layer=2, seq_len=7)
    totals = [total for series in growth(comparison).series for total in series.totals]
    assert {type(total) for total in totals} == {int}


def test_a_configuration_comes_as_data_and_sizes_of_the_address_go_before_its_own(client):
    config = {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 50}
    response = client.post("/api/document?n-layer=2&seq-len=10", json=config)
    assert response.status_code == 200
    assert response.json()["asked"]["model"] == "config.json"
    ledger = lc.cost(config, n_layer=2, seq_len=10)
    assert int(response.json()["totals"]["flops"]) == ledger.total.flops


def test_a_model_without_a_length_is_looked_at_with_a_short_one(client):
    answer = client.get("/api/document", params={"model": "transformer-base"})
    assert answer.status_code == 200
    assert int(answer.json()["totals"]["flops"]) == lc.cost("transformer-base", seq_len=128).total.flops
    assert answer.json()["asked"]["seq_len"] == "128"


def test_an_unknown_model_is_said_in_words_for_a_person(client):
    error = client.get("/api/document", params={"model": "zzz"}).json()["error"]
    assert error.startswith("unknown model 'zzz'; learncost list models has all")
    assert "/api/" not in error


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("ending", ["json", "csv", "md", "tex", "trace.json", "pftrace"])
def test_exports_are_what_the_command_line_writes(client, ending, tmp_path):
    path = tmp_path / "own"
    flags = ["--seq-len", "8", "--n-layer", "2", "--on", "H100-SXM"]
    if "trace" in ending:
        path = path.with_suffix(f".{ending.rpartition('.')[2]}")
        assert main(["trace", "gpt2", *flags, "-o", str(path)]) == 0
    else:
        assert main(["cost", "gpt2", *flags, "--format", {"tex": "latex"}.get(ending, ending), "-o", str(path)]) == 0
    query = {"as": ending, "model": "gpt2", "seq-len": 8, "n-layer": 2, "on": "H100-SXM"}
    response = client.get("/api/export", params=query)
    assert response.content == path.read_bytes()
    assert response.headers["content-disposition"] == f'attachment; filename="learncost.{ending}"'
    assert "as must be one of" in refused(client.get("/api/export", params=query | {"as": "exe"}))


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_fields_are_those_of_the_question(client, every):
    fields = client.get("/api/fields").json()
    names = [flag.name for flag in flags_of(document) if flag.how != "flags"]
    assert [flag["name"] for flag in fields["flags"]] == names
    assert all(flag["meaning"] for flag in fields["flags"])
    assert {choice["name"] for choice in fields["choices"]["model"]} >= {preset.name for preset in presets()}
    for name in ("model", "procedure", "price_book", "on", "precision", "plan", "optimizer"):
        assert fields["choices"][name]
    for choice in fields["choices"]["procedure"][::every]:
        asked = {"model": "gpt2", "n_layer": 2, "seq_len": 4}
        if choice["name"] == "inference":  # of gpt2 it has two passes
            asked = {"model": "vit-base-patch16-224", "num_hidden_layers": 2}
        assert client.get("/api/document", params={**asked, "procedure": choice["name"]}).is_success


def test_the_page_is_whole_and_may_run_nothing_but_itself(client):
    first, second = client.get("/"), client.get("/")
    assert first.status_code == 200
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert first.text.count(f'nonce="{nonce}"') >= 2
    assert nonce not in second.text
    for name, value in {
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "cache-control": "no-store",
    }.items():
        assert first.headers[name] == value


# What is refused.


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "example.com"},
        {"host": f"example.com:{PORT}"},
        {"host": "127.0.0.1"},
        {"host": f"127.0.0.1:{PORT + 1}"},
        {"host": f"127.0.0.1:{PORT}.example.com"},
        {"host": ""},
        {"origin": "http://example.com"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_foreign_hosts_and_origins_are_refused(client, method, headers):
    refused(client.request(method, "/api/document?model=gpt2", headers=headers), 403)


@pytest.mark.parametrize(
    "headers", [{"host": f"localhost:{PORT}"}, {"origin": BASE}, {"sec-fetch-site": "same-origin"}]
)
def test_its_own_pages_are_answered(client, headers):
    assert client.get("/api/document?model=gpt2&seq-len=4", headers=headers).status_code == 200


def test_a_link_from_elsewhere_opens_the_page(client):
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_bodies_that_are_too_large_are_refused_whatever_they_say(client):
    large = b"x" * (BODY + 1)
    assert "a body of more than" in refused(client.post("/api/document", content=large), 413)
    parts = iter([b"x" * 2**16] * 20)  # no length is said
    assert "a body of more than" in refused(client.post("/api/document", content=parts), 413)
    assert "not JSON" in refused(client.post("/api/document", content=large[:-1]))
    assert refused(client.get(f"/api/document?model={'x' * 20_000}"), 414)
    assert refused(client.get(f"/api/document?model={'x' * 3_000}"))
    assert refused(client.get("/api/document?" + "&".join(f"n{i}=1" for i in range(200))))


def test_the_files_of_a_trainer_choose_a_step_and_no_path_is_opened(client: TestClient) -> None:
    text = (
        "base_model: meta-llama/Meta-Llama-3-8B\nmicro_batch_size: 2\nadapter: lora\nsequence_len: 512\ndatasets: []\n"
    )
    found = client.post("/api/files", content=json.dumps({"lora.yaml": text})).json()
    assert found["chosen"] | {"model": "llama-3-8b", "seq_len": "512", "batch_size": "2"} == found["chosen"]
    assert found["notes"][0].startswith("lora.yaml: axolotl")
    for sent in ("{}", '{"a.yaml": 3}', json.dumps({"a.yaml": text.replace("meta-llama/Meta-Llama-3-8B", "/etc")})):
        assert refused(client.post("/api/files", content=sent))


@pytest.mark.parametrize(
    "query",
    [
        "",
        "model=",
        "model=no-such",
        "model=-",
        "model=/etc/passwd",
        "model=./secret.json",
        "model=../..",
        "model=secret",
        "model=secret.json",
        "model=gpt2&on=secret.json",
        "model=gpt2&on=./secret.json",
        "model=gpt2&on=secret",
        "model=gpt2&price_book=secret.json",
        "model=gpt2&precision=secret.json",
        "model=gpt2&plan=secret.json",
        "model=gpt2&optimizer=secret.json",
        "model=gpt2&procedure=secret.json",
        "model=gpt2&architecture=./secret.json",
        "model=gpt2&model_type=../secret",
        "model=gpt2&train=./secret.json",
        "model=gpt2&lora=./secret.json",
        "model=gpt2&n_layer=0",
        "model=gpt2&n_layer=-1",
        "model=gpt2&n_layer=1e99",
        "model=gpt2&n_layer=__import__('os')",
        "model=gpt2&n_layer=" + "9" * 1000,
        "model=gpt2&seq_len=99999999",
        "model=gpt2&batch_size=nan",
        "model=gpt2&dropout=nan",
        "model=gpt2&no_such=1",
        "model=gpt2&=1",
        "model=gpt2&seq_len=1&seq-len=2",
        "model=gpt2&by=equation",
        "model=gpt2&tokens=1e9",
        "model=gpt2&self=1&sizes=2&given=3",
        "model=gpt2&output=out.json",
        "model=%00",
        "model=%ff%fe",
        "model=gpt2&on=%00",
    ],
)
@pytest.mark.parametrize("address", ["/api/document", "/api/export?as=json"])
def test_what_is_asked_wrongly_is_one_line_and_no_path_is_opened(client, address, query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("secret", "secret.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "gpt2", "name": "secret", "peak_tflops": {"fp32": 1}}))

    def opened(path, *rest, **more):
        assert "secret" not in str(path)
        assert "passwd" not in str(path)
        return real(path, *rest, **more)

    real = io.open
    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(builtins, "open", opened)
    answer = client.get(f"{address}{'&' if '?' in address else '?'}{query}")
    refused(answer)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_field_of_any_question_opens_a_path(every, client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.toml").write_text('schedule = ["forward", "backward", "update"]')
    (tmp_path / "secret.json").write_text("{}")
    opened, real = [], io.open
    monkeypatch.setattr(
        io, "open", lambda path, *rest, **more: (opened.append(str(path)), real(path, *rest, **more))[1]
    )
    monkeypatch.setattr(builtins, "open", io.open)
    given, asked = {"model": "gpt2", "n_layer": "1", "seq_len": "4"}, set()
    for route, question, more in (
        ("document", document, {}),
        *(("view", view.question, {"view": name}) for name, view in VIEWS.items()),
        ("export", lc.cost, {"as": "json"}),
    ):
        names = {flag.name for flag in flags_of(question)} - asked
        asked |= names - {"procedure"}  # what answers the same everywhere is asked once
        for name in sorted(names)[::every]:
            for value in (
                "bp,secret.toml" if name in {"side_by_side", "procedures"} else "./secret.toml",
                "secret.json",
            ):
                answer = client.get(f"/api/{route}", params={**given, **more, name: value})
                assert answer.status_code in (200, 400), (route, name, value)
    assert not [path for path in opened if "secret" in path]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"import os",
        b"\xff\xfe",
        b'{"model_type": "gpt2", "n_layer": 1e400}',
        b'{"model_type": "gpt2", "n_layer": "2"}',
        b'{"model_type": "gpt2", "n_layer": NaN}',
        b'{"model_type": "../../etc/passwd"}',
        b'{"model_type": "gpt2", "model_type": "gpt2"}',
        b'{"model_type": "gpt2", "n_layer": ' + b"9" * 6000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"model_type": ["gpt2"]}',
        b'{"auto_map": {"AutoConfig": "x.py"}}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_is_no_configuration_is_one_line(client, body):
    refused(client.post("/api/document", content=body))


def test_what_is_not_there_is_one_line(client):
    for path in (
        "/etc/passwd",
        "/../../etc/passwd",
        "/page.js",
        "/static/x",
        "/api",
        "/%2e%2e/secret",
        "/run",
        "/api/runs",
    ):
        refused(client.get(path), 404)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "POST"):
        refused(client.request(method, "/"), 405)


# Processes that answer, and what is kept.


def test_an_answer_that_takes_too_long_ends_and_the_next_one_comes():
    async def ask():
        pool = ProcessPool(1, seconds=0.01)
        try:
            late = await pool.answer("document", [("model", "gpt2")])
            pool.seconds = 60
            good = await pool.answer("document", [("model", "gpt2"), ("seq_len", "4")])
            wrong = await pool.answer("document", [("model", "no-such")])
            return late, good, wrong
        finally:
            await pool.close()

    late, good, wrong = asyncio.run(ask())
    assert late.status == 422
    assert "more than 0.01 seconds" in json.loads(late.content)["error"]
    assert good.status == 200
    assert int(json.loads(good.content)["totals"]["flops"]) == lc.cost("gpt2", seq_len=4).total.flops
    assert wrong.status == 400


def test_answers_are_kept_within_so_many_bytes():
    class Counted:
        questions = 0

        async def answer(self, route, pairs, config=""):
            self.questions += 1
            return Answer({"good": 200, "bad": 400}.get(route, 503), "text/plain", b"x" * 10, "")

    async def ask():
        counted_answers = Counted()
        cached = AnswerCache(counted_answers, 3 * OVERHEAD + 35)
        for number in [0, 0, 1, 2, 0, 3, 0, 1]:  # 1 is the oldest when 3 comes
            await cached.answer("good", [("a", str(number))])
        for route in ("bad", "bad", "busy", "busy"):  # a refusal lasts, and that nobody has time does not
            await cached.answer(route, [])
        return counted_answers.questions, len(cached), cached.bytes

    assert asyncio.run(ask()) == (5 + 1 + 2, 3, 3 * (10 + OVERHEAD))


def test_who_asks_at_once_is_given_one_answer():
    class Slow:
        questions = 0

        async def answer(self, route, pairs, config=""):
            self.questions += 1
            await asyncio.sleep(0.02)
            return Answer(200, "text/plain", route.encode(), "")

        async def close(self):
            pass

    async def ask():
        answers = Slow()
        kept_answers = AnswerCache(answers)
        first_asker = asyncio.create_task(kept_answers.answer("page", ()))
        await asyncio.sleep(0.005)
        first_asker.cancel()  # who asked first has gone
        replies = await asyncio.gather(
            *(kept_answers.answer("page", ()) for _ in range(5)), kept_answers.answer("other", ())
        )
        await kept_answers.close()
        return answers.questions, [reply.content for reply in replies]

    assert asyncio.run(ask()) == (2, [b"page"] * 5 + [b"other"])


def test_a_worker_that_has_no_room_says_nothing(capfd):
    """An answer that takes more bytes than it may is refused, and nothing is printed where the server was started."""

    async def ask():
        pool = ProcessPool(1, seconds=60, capacity=2**25)  # too little for what an answer imports
        try:
            return await pool.answer("document", [("model", "gpt2")])
        finally:
            await pool.close()

    answer = asyncio.run(ask())
    assert answer.status == 422
    assert "more memory than" in json.loads(answer.content)["error"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("raised", "status"), [(MemoryError(), None), (KeyError("x"), 500), (RecursionError(), 500)])
def test_a_worker_ends_for_want_of_memory_alone(raised, status, monkeypatch):
    def fail(*_):
        raise raised

    monkeypatch.setattr("learncost.viz.serve.answers.answer", fail)
    answers = io.BytesIO()
    if status is None:
        with pytest.raises(MemoryError):  # which ends it without a word
            worker.serve(io.BytesIO(b'["page", [], ""]\n' * 2), answers)
        assert answers.getvalue() == b""
        return
    worker.serve(io.BytesIO(b'["page", [], ""]\n' * 2), answers)
    head = json.loads(answers.getvalue().split(b"\n", 1)[0])
    assert head["status"] == status
    assert answers.getvalue().count(type(raised).__name__.encode()) == 2


# Connections.


@pytest.fixture
def here(monkeypatch):
    """The port of a server in a thread of this process, in which headers, bodies and readers have half a second."""
    monkeypatch.setattr(guard, "HEADER", 0.5)
    monkeypatch.setattr(guard, "READING", 0.5)
    monkeypatch.setattr(guard, "SECONDS", 0.5)
    monkeypatch.setattr("learncost.viz.serve.app.ProcessPool", Here)
    with listening(0) as listener:
        port = listener.getsockname()[1]
        running = making(port)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        while not running.started:
            time.sleep(0.01)
        yield port
        running.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def opened(port, number=1):
    return [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(number)]


def closed(connections):
    """Whether the server closes all of them, whatever it sends before."""
    for each in connections:
        try:
            while each.recv(2**16):
                pass
        except ConnectionResetError:
            pass
        each.close()
    return True


def whole(port, *more):
    return f"GET /api/fields HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{''.join(more)}\r\n".encode()


def answered(port):
    return httpx.get(f"http://127.0.0.1:{port}/api/fields", timeout=20).status_code


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("sent", ["nothing", "half", "half of the second", "trickle", "half a body", "reads nothing"])
def test_who_sends_half_a_request_keeps_nobody_waiting(sent, here):
    """200 connections, of which a server may have 128 beside each other."""
    connections = opened(here, 200)
    begun = time.monotonic()
    for each in connections:
        if sent == "half":
            each.sendall(whole(here)[:40])
        elif sent == "half of the second":
            each.sendall(whole(here) + whole(here)[:40])
        elif sent == "half a body":
            each.sendall(whole(here, "Content-Length: 100\r\n") + b"{")
        elif sent == "reads nothing":
            each.sendall(whole(here) * 3)
    if sent == "trickle":
        while time.monotonic() < begun + 0.4:
            for each in connections:
                with suppress(ConnectionError):  # half a second may be over on a machine at work on something else
                    each.send(b"G")
            time.sleep(0.1)
    while answered(here) == 503:
        assert time.monotonic() < begun + 10
        time.sleep(0.05)
    assert answered(here) == 200
    assert closed(connections)
    assert time.monotonic() < begun + 15


def test_more_connections_than_a_process_has_files_for_are_closed_at_once(here, monkeypatch):
    monkeypatch.setattr(guard, "MOST", 20)
    connections = opened(here, 60)
    assert closed(connections)
    assert answered(here) == 200


# The command.


@pytest.fixture(scope="module")
def server():
    """A server at a free port, its address, and how long it took until it answered."""
    command = [sys.executable, "-m", "learncost", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        address = process.stderr.readline().split()[2].rstrip(".")
        yield process, address
        process.kill()


@pytest.mark.slow
def test_half_open_connections_are_closed_after_five_seconds(server):
    """As the command is started: nothing is patched here."""
    process, address = server
    port, begun = int(address.rpartition(":")[2]), time.monotonic()
    connections = []
    while not connections:
        try:
            connections = opened(port, 200)
        except ConnectionError:  # it has said where it will listen
            time.sleep(0.05)
    for each in connections:
        each.sendall(b"GET / HTTP/1.1\r\nHost: ")
    begun = time.monotonic()
    assert closed(connections)
    assert 4 < time.monotonic() - begun < 12
    assert answered(port) == 200
    assert process.poll() is None


def test_the_command_serves_until_ctrl_c(server):
    process, address = server
    with httpx.Client(base_url=address) as http_client:
        for _ in range(100):
            try:
                assert (
                    http_client.get("/api/document", params={"model": "gpt2", "seq_len": 4}, timeout=60).status_code
                    == 200
                )
                break
            except httpx.ConnectError:
                time.sleep(0.05)
        assert http_client.get("/", timeout=60).status_code == 200
        raw = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        raw.sendall(b"GET / HTTP/1.0\r\n\r\n")  # no Host at all
        assert raw.recv(100).startswith(b"HTTP/1.1 403")
        raw.close()
    ops = ["serve", "--port", address.rpartition(":")[2]]
    assert main(ops) == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (0, 130)
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "x"], "port must be a whole number"),
        (["--port", "70000"], "port must be a whole number"),
        (["--run", "no-such-folder"], "no such folder: no-such-folder"),
    ],
)
def test_what_cannot_be_served_is_one_line(flags, message, capsys):
    assert main(["serve", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_the_extra_one_line_names_it(monkeypatch, capsys):
    monkeypatch.setattr("learncost.viz.serve.command.find_spec", lambda name: None)
    assert main(["serve"]) == 2
    assert "pip install 'learncost[serve]'" in capsys.readouterr().err


# What is watched.


def written(folder, steps, options=None, **more):
    """The files of a training after so many steps, as learncost train writes them."""
    folder.mkdir(exist_ok=True)
    options_written = {
        "model": "gpt2",
        "procedure": "bp",
        "optimizer": "adamw",
        "batch_size": 2,
        "accumulate": 1,
        "seq_len": 8,
    }
    (folder / "training.json").write_text(json.dumps(options_written | {"steps": 10} | (options or {})))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2}))
    rows = [
        {
            "step": at,
            "loss": 5 / at,
            "learning_rate": 0.1,
            "seconds": 0.5,
            "tokens_per_second": 32.0,
            "memory": 7,
            **more,
        }
        for at in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def watched(tmp_path):
    with TestClient(application(PORT, tmp_path, Here()), BASE) as test_client:
        yield tmp_path, test_client


def test_a_training_is_read_on_as_it_grows(watched):
    folder, client = watched
    assert client.get("/api/runs").json()["runs"] == []
    written(folder / "one", 3, validation_loss=1.5, predicted=5)
    runs = client.get("/api/runs").json()
    (run,) = runs["runs"]
    assert (run["name"], run["done"], run["steps"], run["ended"]) == ("one", 3, 10, False)
    assert run["loss"] == [5.0, 2.5, 5 / 3]
    assert run["seconds"] == [0.5, 1.0, 1.5]
    assert [point["loss"] for point in run["validation"]] == [1.5] * 3
    assert (run["predicted"], run["measured"]) == (5, 7)
    flops = lc.cost(str(folder / "one" / "config.json"), batch_size=2, seq_len=8, optimizer="adamw").total.flops
    assert int(run["flops_per_step"]) == flops
    assert client.get("/api/runs", params={"since": runs["version"]}).json() == {
        "version": runs["version"],
        "same": True,
    }
    with (folder / "one" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 1.0, "seconds": 0.5}\nnot json\n{"step": 5, "los')  # the last line is not whole
    (run,) = client.get("/api/runs").json()["runs"]
    assert (run["done"], run["loss"][-1], run["seconds"][-1]) == (4, 1.0, 2.0)
    with (folder / "one" / "metrics.jsonl").open("a") as file:
        file.write('s": null, "seconds": 0.5}\n')
    (run,) = client.get("/api/runs").json()["runs"]
    assert (run["done"], run["loss"][-1]) == (5, None)
    written(folder / "one", 2)  # resumed: what came after the checkpoint is cut off
    (run,) = client.get("/api/runs").json()["runs"]
    assert run["step"] == [1, 2]


def test_a_folder_of_a_training_is_watched_itself_and_its_last_sample_shown(tmp_path):
    written(tmp_path, 10, {"train": "no-such"})
    (tmp_path / "samples.txt").write_text("--- step 5\nfirst\n--- step 10\nhello <b>\x00\n")
    with TestClient(application(PORT, tmp_path, Here()), BASE) as client:
        (run,) = client.get("/api/runs").json()["runs"]
        assert run["sample"] == {"step": 10, "text": "hello <b>\x00"}
        assert run["ended"]
        assert run["flops_per_step"] is None  # cost cannot say


@pytest.mark.slow  # one that grows is read below
def test_a_contest_is_a_curve_for_each_training(watched):
    folder, client = watched
    out = folder / "contest.json"
    flags = ["digits", "--budget", "steps:3", "--seeds", "0,1", "--rates", "0.1", "--procedure", "bp,pepita"]
    assert main(["contest", *flags, "--out", str(out)]) == 0
    answer = json.loads(out.read_text())
    runs = client.get("/api/runs").json()["runs"]
    assert [(run["procedure"], run["name"].rpartition(" ")[2]) for run in runs] == [
        (result["procedure"], str(seed)) for result in answer["results"] for seed in (0, 1)
    ]
    every = [(result, training) for result in answer["results"] for training in result["trainings"]]
    for run, (result, training) in zip(runs, every, strict=True):
        assert run["loss"] == training["losses"]
        assert int(run["flops_per_step"]) == result["flops_per_step"]
        assert (run["predicted"], run["measured"]) == (result["predicted_peak_bytes"], result["measured_peak_bytes"])
        assert run["validation"][-1]["accuracy"] == training["after"]["accuracy"]


def test_a_contest_is_written_after_every_training(tmp_path, monkeypatch):
    written_values = []
    monkeypatch.setattr("learncost.cli.contest.write_json", lambda path, value: written_values.append(value))
    flags = ["digits", "--budget", "steps:2", "--seeds", "0", "--rates", "0.1", "--procedure", "bp,pepita"]
    assert main(["contest", *flags, "--out", str(tmp_path / "contest.json")]) == 0
    assert [sum(len(result["trainings"]) for result in value["results"]) for value in written_values] == [1, 2, 2]


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b'{"schema": 1, "problem": 1, "budget": 1, "seeds": 1, "results": []}', b"[" * 9999],
)
def test_files_that_are_something_else_are_left_alone(watched, content):
    folder, client = watched
    (folder / "own.json").write_bytes(content)
    (folder / "run").mkdir()
    (folder / "run" / "training.json").write_bytes(content)
    (folder / "run" / "metrics.jsonl").write_bytes(content)
    assert client.get("/api/runs").status_code == 200


def test_the_page_of_runs_loads_nothing_and_names_its_library(watched):
    _, client = watched
    response = client.get("/run")
    assert response.status_code == 200
    assert "uPlot" in response.text
    assert "{{" not in response.text.replace("{{}}", "")
    assert "default-src 'none'" in response.headers["content-security-policy"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(some.lists(some.one_of(some.none(), some.floats(-1e9, 1e9)), max_size=300), some.integers(3, 60))
def test_a_thinned_curve_keeps_its_lowest_and_its_highest(values, most):
    thinned_values = thinned(values, most)
    assert thinned_values == sorted(set(thinned_values))
    assert len(thinned_values) <= max(most, 3)
    numbers = [value for value in values if value is not None]
    if numbers:
        left = [values[place] for place in thinned_values if values[place] is not None]
        assert (min(left), max(left)) == (min(numbers), max(numbers))
        assert thinned_values[-1] == len(values) - 1
