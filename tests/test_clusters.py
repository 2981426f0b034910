"""Links, clusters and collectives: what the files say is what is read; algorithms against what was measured of them."""

import itertools
import json
from collections import Counter
from fractions import Fraction

import pytest

import learncost as lc
from learncost.autoshard.step import PassTime, exposed
from learncost.calibration.links import TimedCollective, fitted
from learncost.cli.command import main
from learncost.devices.cluster import clusters, links
from learncost.devices.collective import COLLECTIVES, KINDS, MeshGroup, algorithms, groups, transfer
from learncost.devices.sustained import sustained
from learncost.timing.work import MatmulShape


def test_every_number_of_a_link_says_who_says_so():
    for link in links().values():
        given = {"gbs", "links", "latency_us", "topology"}
        given |= {"attained"} if link.attained != 1 else set()
        given |= {"reduces"} if link.reduces else set()
        given |= {"dimensions"} if link.dimensions > 1 else set()
        assert given == set(link.sources), link.name
    assert all(cluster.source for cluster in clusters().values())


@pytest.mark.parametrize(
    ("name", "devices", "inside", "between"),
    [
        # One way, in GB/s: half of what the data sheets print both ways together.
        ("DGX A100", 8, 600 / 2, 25),
        ("DGX H100", 8, 900 / 2, 50),
        ("DGX H200", 8, 900 / 2, 50),
        ("DGX B200", 8, 1800 / 2, 50),
        ("GB200 NVL72", 72, 1800 / 2, 50),
        ("MI300X", 8, 896 / 2, 50),
    ],
)
def test_the_links_of_published_systems(name, devices, inside, between):
    found = lc.cluster(name)
    assert (found.devices, found.inside.bandwidth / 1e9, found.between.bandwidth / 1e9) == (devices, inside, between)


@pytest.mark.parametrize(
    ("name", "mesh", "busbw"),
    [
        # stas00/ml-engineering, network: all_reduce of 4 GiB or more; MI300X: 8 and 2 devices.
        ("DGX A100", {"dp": 8}, 235),
        ("DGX H200", {"dp": 8}, 473.1),
        ("DGX H200", {"dp": 4}, 363.3),
        ("DGX B200", {"dp": 32}, 377.34),
        ("MI300X", {"dp": 8}, 312.9),
        ("MI300X", {"dp": 2}, 47.67),
    ],
)
def test_an_all_reduce_is_as_fast_as_was_measured(name, mesh, busbw):
    cluster = lc.cluster(name)
    group = groups(mesh, cluster.devices)["dp"]
    assert transfer("all_reduce", 2**32, group, cluster).busbw == pytest.approx(busbw, rel=0.07)


@pytest.mark.parametrize("name", algorithms())
@pytest.mark.parametrize("devices", [2, 4, 8, 96])
def test_no_algorithm_sends_less_than_what_the_others_lack(name, devices):
    """Each of p devices starts with a part of the result, or with the whole of the sum: what it must send is known."""
    found = algorithms()[name]
    assert found.sent("send", devices) == 1
    assert found.sent("all_to_all", devices) == Fraction(devices - 1, devices)
    for op in COLLECTIVES:
        assert 0 < found.sent(op, devices) <= 2
        assert found.steps(op, devices) > 0
    assert found.sent("shard", devices) == 0
    # A ring moves no more than any algorithm without a switch that computes.
    if name != "switch":
        ring = algorithms()["ring"]
        assert all(found.sent(op, devices) >= ring.sent(op, devices) for op in COLLECTIVES)


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_a_ring_sends_what_a_ring_that_is_run_sends(devices):
    """Parts go round, each device to the next one: first their sums, then the sums themselves."""
    arrays = [[[float(device * devices + part)] for part in range(devices)] for device in range(devices)]
    wanted = [[sum(arrays[device][part][0] for device in range(devices))] for part in range(devices)]
    sent = Counter()
    for op, begin, joins in (("reduce_scatter", 0, True), ("all_gather", 1, False)):
        for iteration in range(devices - 1):
            messages = [(device, (device + begin - iteration) % devices) for device in range(devices)]
            parts = [arrays[device][part] for device, part in messages]
            for (device, part), values in zip(messages, parts, strict=True):
                there = arrays[(device + 1) % devices]
                there[part] = [there[part][0] + values[0]] if joins else values
                sent[op, device] += len(values)
    assert arrays == [wanted] * devices
    ring = algorithms()["ring"]
    for device in range(devices):
        for op in ("reduce_scatter", "all_gather"):
            assert ring.sent(op, devices) == Fraction(sent[op, device], devices)
        both = sent["reduce_scatter", device] + sent["all_gather", device]
        assert ring.sent("all_reduce", devices) == Fraction(both, devices)


def test_gloo_moves_a_reduce_scatter_as_an_all_reduce():
    gloo = algorithms()["gloo"]
    assert gloo.sent("reduce_scatter", 4) == gloo.sent("all_reduce", 4) == 3 / 2
    assert gloo.sent("all_gather", 4) == 3 / 4


def test_the_last_axis_of_a_mesh_lies_in_the_node():
    found = groups({"pp": 2, "dp": 8, "tp": 4}, 8)
    assert found == {"pp": MeshGroup(2, 1), "dp": MeshGroup(8, 2), "tp": MeshGroup(4, 4)}
    assert found["dp"].nodes == 4


def test_latency_is_what_small_payloads_take():
    cluster, group = lc.cluster("DGX H100"), MeshGroup(4, 4)
    small, large = (transfer("all_reduce", size, group, cluster) for size in (8, 2**30))
    assert small.latency == large.latency == pytest.approx(23.6e-6 + 6 * 6.3e-6)
    assert small.moving < 1e-9 < 1e-3 < large.moving


def test_parts_of_an_all_to_all_leave_together():
    """SimuMax measured 58, 41 and 51 us of 2, 4 and 8 B200."""
    several = [transfer("all_to_all", 8, MeshGroup(size, size), lc.cluster("DGX B200")) for size in (2, 4, 8)]
    assert len({each.latency for each in several}) == 1


def test_attention_attains_what_was_measured_of_the_pairs_that_its_mask_leaves():
    """SimuMax, configs/system/a100_pcie.json: 32 heads of 128 and 4,096 tokens in 1.132 of the peak forward and 0.976
    backward, of all pairs, of which the mask leaves half. Queries of a tile are rows, columns or summed."""
    rates = sustained(lc.device("NVIDIA A100 PCIe 80GB"), "bf16").inner
    measured = 7 / (2 / 1.132 + 5 / 0.976) / 2 * 312e12
    for shape in ((32, 4096, 128), (32, 128, 4096), (4096, 128, 32)):
        assert rates.rate(*shape) == pytest.approx(measured, rel=0.03)
    assert rates.rate(32, 4096, 64) < 0.93 * rates.rate(32, 4096, 128)


@pytest.mark.parametrize(("rows", "share"), [(128, 0.149), (256, 0.236), (512, 0.317), (1024, 0.381), (2460, 0.453)])
def test_few_rows_of_an_expert_are_slow(rows, share):
    """SimuMax, configs/system/b200_bf16_ceperm.json: grouped products by rows of an expert, FLOPs over seconds."""
    rates = sustained(lc.device("NVIDIA B200 SXM"), "bf16")
    product = MatmulShape(1, 32 * rows, 4096, 7168, "NN", "m", 32)
    attained = rates.chosen * rates.products["NN"].rate(*product.half_of_expert)
    assert attained / 2250e12 == pytest.approx(share, rel=0.08)


def test_a_row_of_several_experts_goes_to_a_node_once():
    """DeepSeek-V3, section 3.2.2: over 8 nodes a row of 8 experts drawn evenly leaves for 4.6 others, not for 7."""
    cluster, group = lc.cluster("DGX H100"), MeshGroup(64, 8)
    each = transfer("dispatch", 1e9, group, cluster)
    once = transfer("dispatch", 1e9, group, cluster, copies=8)
    four = sum(len({*draw} - {0}) for draw in itertools.product(range(8), repeat=4)) / 8**4
    assert transfer("dispatch", 1e9, group, cluster, copies=4).moving / each.moving == pytest.approx(four / 3.5)
    assert once.moving < 0.7 * each.moving


@pytest.mark.parametrize(("beside", "waits"), [(4.0, 1.0), (12.0, 3.0), (16.0, 7.0), (0.0, 0.0)])
def test_collectives_slow_down_what_is_computed_beside_them(beside, waits):
    """With a quarter of the device they leave 9 s of computing at 3/4 for as long as they go on."""
    assert PassTime(compute=9.0, overlapping=beside, shared=0.25).exposed == pytest.approx(waits)


def test_a_step_of_more_compute_is_never_shorter_where_collectives_are_longer_than_it():
    def took(compute):
        made = {name: PassTime(compute=compute, overlapping=4.0) for name in "FBW"} | {"O": PassTime(overlapping=5.0)}
        return sum(map(sum, exposed(made).values()))

    assert [took(compute) for compute in (1.0, 2.0, 4.0, 5.0, 8.0)] == [17.0, 17.0, 17.0, 18.0, 24.0]
    assert lc.cluster("TPU v5p pod").shared == 0


def test_words_of_placed_tables_have_a_kind():
    for op in KINDS:
        assert transfer(op, 1e9, MeshGroup(4, 4), lc.cluster("DGX H100")).seconds > 0 or op == "shard"
    with pytest.raises(lc.InputError, match="no collective is called 'softmax'"):
        transfer("softmax", 1, MeshGroup(4, 4), lc.cluster("DGX H100"))


def test_an_axis_that_leaves_the_only_node_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('device = "RTX 4090"\ndevices = 2\ninside = "PCIe 4 x16"\n', encoding="utf-8")
    mine = lc.cluster(str(path))
    assert (mine.name, mine.between) == ("mine", None)
    with pytest.raises(lc.InputError, match="no network between nodes: a mesh axis cannot have 4 devices"):
        transfer("all_reduce", 8, MeshGroup(4, 2), mine)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('device = "H100 SXM"\ndevices = 8\ninside = "NVLink 4"\nspeed = 3\n', "a cluster has no 'speed'"),
        ('device = "H100 SXM"\ndevices = 0\ninside = "NVLink 4"\n', "devices must be a whole number above 0"),
        ('device = "H100 SXM"\ndevices = 8\ninside = "NVLink 9"\n', "no link is called 'NVLink 9'; did you mean"),
        ('device = "H100 SXM"\ninside = "NVLink 4"\n', "a cluster needs devices"),
        ('device = "H100 SXM"\ndevices = 8\ninside = { name = "x", gbs = -1 }\n', "gbs must be a number from 10"),
        ('device = "H100 SXM"\ndevices = 8\ninside = { name = "x", gbs = nan }\n', "gbs must be a number from 10"),
        (
            'device = "H100 SXM"\ndevices = 8\ninside = { name = "x", gb = 1 }\n',
            "a link has no 'gb'; did you mean 'gbs'",
        ),
        ('device = "H100 SXM"\ndevices = 8\ninside = { name = "x", gbs = 1, topology = "star" }\n', "must be one of"),
        (
            'device = "H100 SXM"\ndevices = 8\ninside = { name = "x", gbs = 1, attained = 2 }\n',
            "attained must be above 0",
        ),
        ('device = "no such"\ndevices = 8\ninside = "NVLink 4"\n', "no device or cluster is called 'no such'"),
        ('device = "H100 SXM"\ndevices = 8\ninside = 7\n', "a link must be a name or a table, not 7"),
    ],
)
def test_a_cluster_of_ones_own_is_checked_key_by_key(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(lc.InputError, match=message):
        lc.cluster(str(path))


@pytest.mark.parametrize(
    ("name", "message"), [("DGX H10", "did you mean 'DGX H100'"), ("", "no device or cluster"), (7, "called 7")]
)
def test_unknown_clusters(name, message):
    with pytest.raises(lc.InputError, match=message):
        lc.cluster(name)


def test_clusters_are_listed(capsys):
    assert main(["list", "clusters", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in entries] == list(clusters())
    assert entries[0]["inside"]["sources"]["gbs"]


def test_a_link_is_fitted_to_what_was_timed():
    """Two processes over a link of 2 GB/s and 30 microseconds a step, timed without an error."""
    gloo = algorithms()["gloo"]
    timed = tuple(
        TimedCollective(op, size, float(gloo.sent(op, 2)) * size / 2e9 + gloo.steps(op, 2) * 30e-6)
        for op in COLLECTIVES
        for size in (1024, 2**18, 2**23)
    )
    assert fitted(timed, 2, "gloo") == pytest.approx((2.0, 30.0))


@pytest.mark.slow
def test_collectives_are_measured_where_torch_runs(tmp_path, capsys):
    path = tmp_path / "link.json"
    assert main(["calibrate", "--processes", "2", "--quick", "--out", str(path)]) == 0
    assert "as a link:" in capsys.readouterr().out
    own = tmp_path / "own.toml"
    own.write_text(f'device = "RTX 4090"\ndevices = 2\ninside = "{path}"\n', encoding="utf-8")
    assert lc.cluster(str(own)).inside.name == "gloo here"


@pytest.mark.parametrize(
    ("more", "message"),
    [("--processes 1 --out a.json", "from 2 to 64"), ("--processes 2", "say where"), ("--processes x", "from 2 to 64")],
)
def test_a_link_that_cannot_be_measured_is_one_line(more, message, capsys):
    assert main(["calibrate", *more.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "asked",
    [
        "cost gpt2",
        "memory gpt2",
        "fit gpt2",
        "run-cost gpt2 --tokens 1e9",
        "search gpt2 --devices 8",
        "cost gpt2 --mesh dp=8 --seq-len 64 --batch-size 8",
        "emit gpt2 --backend c99",
    ],
)
def test_devices_and_clusters_are_one_namespace(asked, capsys):
    """Every command answers a name that stands for several with the same sentence."""
    assert main([*asked.split(), "--on", "H100"]) == 2
    says = "learncost: 'H100' matches NVIDIA H100 SXM, NVIDIA H100 PCIe, DGX H100: give one of these\n"
    assert capsys.readouterr().err == says


def test_a_cluster_means_its_device_and_a_device_its_cluster():
    assert lc.device("DGX-H100") == lc.device("H100 SXM")
    assert lc.cluster("H100 SXM") == lc.cluster("DGX H100")
    sizes = {"n_layer": 1, "seq_len": 32}
    assert lc.memory("gpt2", on="DGX-H100", **sizes).to_dict() == lc.memory("gpt2", on="H100 SXM", **sizes).to_dict()
    of_cluster, of_device = (lc.cost("gpt2", on=name, **sizes).timing for name in ("DGX-H100", "H100 SXM"))
    assert of_cluster.seconds == of_device.seconds > 0
