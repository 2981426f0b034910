"""Checkpoints in parts: PyTorch's distributed format, read into other parts, whole, and by PyTorch itself."""

import resource

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load

import learncost as lc
from learncost.models.storage import NO_ADVICE, WriteAdvice
from learncost.training import parts
from learncost.training.parts import ArrayPart

ARRAYS = {
    "model.w": np.arange(24.0).reshape(4, 6),
    "model.codes": np.arange(5, dtype=np.uint8),
    "optimizer.w.m": np.arange(24, dtype=np.float32).reshape(4, 6),
    "optimizer.t": np.array(3.0),
}


def wholes(arrays):
    return {name: (ArrayPart(array, (0,) * array.ndim, array.shape),) for name, array in arrays.items()}


@pytest.fixture
def saved(tmp_path):
    parts.save(tmp_path, wholes(ARRAYS), 7, {"metrics.jsonl": 3}, NO_ADVICE)
    return parts.newest(tmp_path, "put a copy there")


def test_what_was_saved_is_read_whole_and_in_other_parts(saved):
    assert saved.steps == 7
    assert saved.logs == {"metrics.jsonl": 3}
    weights, state = parts.read_whole(saved, "").values()
    for name, array in ARRAYS.items():
        kind, _, rest = name.partition(".")
        np.testing.assert_array_equal((weights if kind == "model" else state)[rest], array)
    corner, row = ArrayPart(np.zeros((2, 3)), (2, 3), (4, 6)), ArrayPart(np.zeros((1, 6)), (0, 0), (4, 6))
    parts.read(saved, {"model.w": (corner, row)}, "")
    np.testing.assert_array_equal(corner.array, ARRAYS["model.w"][2:, 3:])
    np.testing.assert_array_equal(row.array, ARRAYS["model.w"][:1])


def test_parts_that_lie_apart_are_saved(tmp_path):
    whole = ARRAYS["model.w"]
    apart = tuple(ArrayPart(whole[first : first + 2], (first, 0), whole.shape) for first in (2, 0))
    parts.save(tmp_path, {"model.w": apart}, 7, {}, NO_ADVICE)
    np.testing.assert_array_equal(parts.read_whole(parts.newest(tmp_path, ""), "")["model"]["w"], whole)


def test_pytorch_reads_it_without_us(saved, tmp_path):
    dcp_to_torch_save(saved.path, tmp_path / "all.pt")
    found = torch.load(tmp_path / "all.pt")
    assert found.keys() == {"model", "optimizer"}
    np.testing.assert_array_equal(found["optimizer"]["w.m"], ARRAYS["optimizer.w.m"])
    state = {"model": {"w": torch.zeros(4, 6, dtype=torch.float64)}}
    load(state, checkpoint_id=saved.path, no_dist=True)
    np.testing.assert_array_equal(state["model"]["w"], ARRAYS["model.w"])


def test_what_is_damaged_or_does_not_fit_is_refused(saved):
    with pytest.raises(
        lc.InputError, match=r"saved torch.Size\(\[4, 6\]\) and current: .*\[4, 8\]\) for model.w; again"
    ):
        parts.read(saved, {"model.w": (ArrayPart(np.zeros((4, 8)), (0, 0), (4, 8)),)}, "again")
    with pytest.raises(lc.InputError, match=r"Missing key in checkpoint state_dict: model.v; again"):
        parts.read(saved, {"model.v": (ArrayPart(np.zeros((4, 8)), (0, 0), (4, 8)),)}, "again")
    for name in saved.digests:
        path = saved.path / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(lc.InputError, match=f"{name} is damaged: its digest differs; put a copy there"):
            parts.read_whole(saved, "put a copy there")
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    path.unlink()
    with pytest.raises(lc.InputError, match="no such file"):
        parts.read_whole(saved, "put a copy there")


def test_a_full_disk_leaves_the_checkpoint_before(saved, tmp_path):
    large = wholes({"model.w": np.arange(100_000.0)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(lc.InputError, match=r"cannot write .*checkpoint-9: File too large; step 7 is kept"):
            parts.save(tmp_path, large, 9, {}, WriteAdvice("step 7 is kept", "again"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]
    assert parts.newest(tmp_path, "") == saved


def test_a_checkpoint_without_its_last_file_is_none(saved, tmp_path):
    parts.save(tmp_path, wholes(ARRAYS), 8, {}, NO_ADVICE)
    (tmp_path / "checkpoint-8" / parts.METADATA_FILE).unlink()
    assert parts.newest(tmp_path, "") == saved
    parts.save(tmp_path, wholes(ARRAYS), 8, {}, NO_ADVICE)
    parts.forget(tmp_path, 8)
    assert parts.newest(tmp_path, "").steps == 8
    assert not saved.path.exists()


def test_numbers_that_are_not_finite_are_not_saved(tmp_path):
    with pytest.raises(lc.InputError, match=r"step 1: model.w holds numbers that are not finite"):
        parts.save(tmp_path, wholes({"model.w": np.array([np.nan])}), 1, {}, NO_ADVICE)
    assert not list(tmp_path.iterdir())
