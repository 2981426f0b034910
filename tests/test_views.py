"""Views beside the document: their numbers are those of the commands that they name, and charts of what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

import learncost as lc
from answering import Here
from learncost.ir.errors import InputError
from learncost.reports.memory.engines import memory_engines
from learncost.viz.serve.app import application
from learncost.viz.views import VIEWS, pictures

PORT = 8642
SMALL = {"n_layer": 1, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 16}
TABLE = """net(X share; W V) -> loss
  H[B o] = X[B i] W[i o]  @ net.first linear
  G[B o] = relu(H[B o])  @ net.first relu
  Y[B c] = G[B o] V[o c]  @ head linear
  S[B c] = Y[B c] Y[B c]  @ head square
  loss[] = S[B c] share[B c]
"""


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(application(PORT, answers=Here()), f"http://127.0.0.1:{PORT}") as test_client:
        yield test_client


def view(client: TestClient, name: str, **query: Any) -> dict[str, Any]:
    answer = client.get("/api/view", params={"view": name, "model": "gpt2", **query})
    assert answer.status_code == 200, answer.text
    picture = answer.json()
    assert picture["title"]
    assert picture["lead"].endswith(".")
    assert picture["command"].startswith("learncost ")
    return picture


def chart(picture: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(chart for chart in picture["charts"] if chart["kind"] == kind)


@pytest.mark.slow  # tests/test_consistency.py asks the server for engines
def test_memory_by_runner_is_that_of_the_command(client):
    rows = {row["name"]: row for row in chart(view(client, "engines", **SMALL, engine="torch"), "bars")["rows"]}
    assert rows.keys() == memory_engines().keys()
    for name, row in rows.items():
        answer = lc.memory("gpt2", engine=name, **SMALL)
        assert sum(row["parts"].values()) == answer.peak
        assert row["choose"] == {"engine": name}
        assert row["here"] == (name == "torch")


def test_a_runner_that_refuses_says_why(client):
    several = view(client, "engines", **SMALL, precision="bf16-masters", engine="eager")
    rows = {row["name"]: row for row in chart(several, "bars")["rows"]}
    assert rows["numpy"]["refused"] == "supports only fp32 or fp64: give --engine graph"


def test_the_page_shows_the_runner_that_is_chosen(client):
    answer = client.get("/api/document", params={"model": "gpt2", **SMALL, "engine": "eager"}).json()
    assert answer["memory"]["peak"] == lc.memory("gpt2", engine="eager", **SMALL).peak
    assert "--engine eager" in answer["command"]  # on a device the time is that of the engine
    refused = client.get(
        "/api/document", params={"model": "gpt2", **SMALL, "engine": "numpy", "precision": "bf16-masters"}
    )
    assert refused.status_code == 400


def test_arrays_of_an_arena_lie_beside_each_other(client):
    blocks = chart(view(client, "arena", **SMALL), "blocks")
    answer = lc.memory("gpt2", engine="c99", **SMALL)
    assert blocks["height"] == answer.split["arena"]
    assert answer.to_dict()["arena"]["bytes"] == blocks["height"]
    boxes = blocks["boxes"]
    assert max(begin + size for *_, begin, size in boxes) <= blocks["height"]
    spans = [first for _, first, _ in blocks["spans"]]
    assert spans == [1, *(last + 1 for *_, last in blocks["spans"][:-1])]
    for at, (*_, first, last, begin, size) in enumerate(boxes):
        for *_, other_first, other_last, other_begin, other_size in boxes[:at]:
            apart = begin + size <= other_begin or other_begin + other_size <= begin
            never = last < other_first or other_last < first
            # An array in the place of another that ends with it has that one's bytes.
            assert apart or never or (begin, size) == (other_begin, other_size)


def test_a_step_that_no_32_bit_processor_addresses_has_no_arena(client):
    answer = client.get("/api/view", params={"view": "arena", "model": "gpt2-xl"})
    assert answer.status_code == 400
    assert "a 32-bit processor addresses 4.29 GB" in answer.json()["error"]


def test_modules_are_a_tree_of_the_rows_by_module(client):
    answer = client.post("/api/view?view=modules&B=2&i=3&o=4&c=5", content=TABLE)
    assert answer.status_code == 200, answer.text
    rows = chart(answer.json(), "tree")["rows"]
    step = lc.cost(lc.layer(TABLE), B=2, i=3, o=4, c=5, by="module")
    assert (rows[0][0], rows[0][2][0]) == (0, step.total.flops)
    flops = {name: values[0] for _, name, values in rows}
    for name in ("first", "head"):
        assert flops[name] == sum(row.flops for row in step.rows if row.module.split(".")[-1] == name)
    assert [depth for depth, *_ in rows if _[0] == "first"] == [2]
    document = client.post("/api/document?B=2&i=3&o=4&c=5", content=TABLE).json()
    assert "modules" in document["views"]
    assert "modules" not in client.get("/api/document", params={"model": "gpt2", **SMALL}).json()["views"]


MESH = {"seq_len": 16, "batch_size": 16, "mesh": "pp=2,dp=2,tp=2", "cluster": "dgx a100", **SMALL, "n_layer": 2}


def test_many_devices_are_as_the_commands_have_them(client):
    picture = view(client, "devices", **MESH)
    asked = {name: value for name, value in MESH.items() if name not in ("cluster", "mesh")}
    cost = lc.run_cost("gpt2", tokens=1e6, on="DGX A100", mesh=MESH["mesh"], **asked)
    time, memory = (item for item in picture["charts"] if item["kind"] == "bars")
    assert sum(time["rows"][0]["parts"].values()) == pytest.approx(cost.figures["step"].value, rel=1e-6)
    fullest = max(sum(row["parts"].values()) for row in memory["rows"])
    assert fullest == pytest.approx(1e9 * cost.figures["memory"].value, rel=1e-12)
    lanes = chart(picture, "lanes")["lanes"]
    assert [name for name, _ in lanes] == ["stage 1", "stage 2"]
    for _, slices in lanes:
        ends = [0.0, *(end for *_, end in slices)]
        assert all(begin >= end - 1e-12 for (*_, begin, _), end in zip(slices, ends, strict=False))
    marked = [line for line in chart(picture, "lines")["rows"] if line[2] and line[3] is not None]
    place = next(note for note in picture["notes"] if "cut by: " in note).partition("cut by: ")[2].rstrip(".")
    placed = lc.place("gpt2", "dp=2,tp=2", place=place, precision="bf16-masters", seq_len=16, **{**SMALL, "n_layer": 2})
    assert [line[3] for line in marked] == [collective.payload_bytes for collective in placed.collectives]
    assert all(line[4] for line in marked)


def test_an_interleaved_pipeline_is_drawn_with_two_stages_on_a_device(client):
    few = {**MESH, "n_layer": 4, "batch_size": 4, "mesh": "pp=2,dp=2"}  # two microbatches, which are all drawn
    picture = view(client, "devices", **few, schedule="interleaved")
    lanes = chart(picture, "lanes")["lanes"]
    assert [name for name, _ in lanes] == ["stages 1 and 3", "stages 2 and 4"]
    for _, slices in lanes:
        assert sorted((kind, number) for kind, number, *_ in slices) == sorted(
            (kind, number) for kind in ("forward", "backward") for number in "12" for _ in range(2)
        )
        ends = [0.0, *(end for *_, end in slices)]
        assert all(begin >= end - 1e-12 for (*_, begin, _), end in zip(slices, ends, strict=False))
    asked = {name: value for name, value in few.items() if name != "cluster"}
    step = lc.run_cost("gpt2", tokens=1e6, on="DGX A100", schedule="interleaved", **asked).spread.step
    assert max(end for _, slices in lanes for *_, end in slices) == pytest.approx(step.seconds - step.once)
    refused = client.get(
        "/api/view", params={"view": "devices", "model": "gpt2", **few, "schedule": "interleaved", "batch_size": 6}
    )
    assert "not a multiple of the 2 devices of an interleaved pipeline" in refused.json()["error"]


def test_without_a_mesh_the_fastest_are_shown_and_one_is_picked(client):
    picture = view(client, "devices", seq_len=16, batch_size=16, devices=4, **SMALL)
    found = lc.search("gpt2", "DGX H100", 4, seq_len=16, batch_size=16, **SMALL)
    rows = picture["charts"][0]["rows"]
    assert len(rows) == len(found.found)
    for row, each in zip(rows, found.found, strict=True):
        assert sum(row["parts"].values()) == pytest.approx(each.step.seconds, rel=1e-6)
    long = {
        "seq_len": 16384,
        "batch_size": 1,
        **SMALL,
        "n_positions": 16384,
    }  # only Ulysses needs no plan, so it can be picked
    several = view(client, "devices", devices=2, **long)["charts"][0]["rows"]
    sharded = next(row for row in several if "cp=2" in row["choose"].get("mesh", ""))
    for row, sizes in ((rows[0], {"seq_len": 16, "batch_size": 16, **SMALL}), (sharded, long)):
        picked = view(client, "devices", **sizes, **row["choose"])
        assert sum(picked["charts"][0]["rows"][0]["parts"].values()) == pytest.approx(sum(row["parts"].values()))


def test_views_have_their_fields_and_open_no_file(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("name = 'mine'")
    fields = client.get("/api/fields").json()
    assert [item["name"] for item in fields["views"]] == list(VIEWS)
    names = {flag["name"] for flag in next(item for item in fields["views"] if item["name"] == "devices")["flags"]}
    assert names == {"mesh", "place", "placement", "cluster", "devices", "schedule", "chunks", "microbatch"}
    assert {part["name"] for part in fields["choices"]["mesh"]["parts"]} >= {"pp", "dp", "tp", "cp", "ep"}
    for query in (
        "lora=c_attn",
        "optimizer=sgd",
        "plan=fused",
        "cluster=mine.toml",
        "cluster=./mine.toml",
        "mesh=xx",
        "mesh=dp=0",
        "devices=-1",
        "view=devices",
    ):
        answer = client.get(f"/api/view?view=devices&model=gpt2&{query}")
        assert answer.status_code == 400, query
        assert "\n" not in answer.json()["error"]
    assert client.get("/api/view?view=nothing&model=gpt2").status_code == 400


def test_a_report_has_the_arena_of_a_small_step_and_modules():
    assert pictures({"model": "gpt2"}) == {}
    assert pictures({"model": lc.layer(TABLE), "B": 2, "i": 3, "o": 4, "c": 5}).keys() == {"arena", "modules"}
    report = lc.report("gpt2", procedure="bp,recompute", output=None, **SMALL)
    data = json.loads(report.html.partition('id="data">')[2].partition("</script>")[0])
    assert list(data["documents"][0]["views"]) == ["arena"]


def test_every_view_refuses_in_a_line():
    for name, item in VIEWS.items():
        with pytest.raises(InputError):
            item.question("gpt2", seq_len=-1)
        assert name
