"""What `price` and `run` are given: sizes as exact ints or float64 arrays, numbers alone, masks that are summed."""

import numpy as np
import pytest

import learncost as lc

LINEAR = lc.layer("linear(X; W) -> Y\n  Y[M f] = X[M d] W[d f]")


def test_integer_arrays_do_not_overflow():
    flops = lc.price(LINEAR, {"M": np.array([10**6, 10**9]), "d": np.int64(10**6), "f": 10**6}).flops
    assert flops.tolist() == [2e18, 2e21]  # 2 M d f, beyond 64 bits in the second


def test_one_number_stays_exact():
    assert lc.price(LINEAR, {"M": np.int64(10**12), "d": 10**12, "f": 10**12}).flops == 2 * 10**36


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "3", None, np.array(["a"])])
def test_other_sizes_are_refused(size):
    with pytest.raises(lc.InputError, match="size"):
        _ = lc.price(LINEAR, {"M": size, "d": 2, "f": 3}).flops


def test_an_array_leaves_no_symbol():
    with pytest.raises(lc.InputError, match="give f"):
        _ = lc.price(LINEAR, {"M": np.array([1, 2]), "d": 2}).flops


def test_numbers_alone_cost_nothing():
    """1 + 0.25 is Python's arithmetic; what follows touches the array once."""
    layer = lc.layer("shifted(X) -> Y\n  Y[M d] = 1[] - X[M d] + 0.25[]")
    assert lc.price(layer, {"M": 3, "d": 2}).flops == 6
    assert lc.check_layer(layer).passed


def test_a_layer_is_a_text():
    with pytest.raises(lc.InputError, match="a layer must be a text"):
        lc.layer(3)


@pytest.mark.parametrize("name", ["procedure", "plan", "mesh", "engine", "optimizer"])
def test_a_flag_that_is_no_text_is_refused_and_none_is_its_default(name):
    with pytest.raises(lc.InputError, match=f"{name} must be a text, not 3"):
        lc.memory("gpt2", **{name: 3})
    assert lc.memory("gpt2", n_layer=1, **{name: None}).peak == lc.memory("gpt2", n_layer=1).peak


@pytest.mark.parametrize("question", [lc.report, lc.trace])
def test_a_file_to_write_that_is_no_path_is_refused(question):
    with pytest.raises(lc.InputError, match="output must be a path, not 3"):
        question("gpt2", output=3, n_layer=1, seq_len=4)


def test_a_list_of_names_is_a_text_with_commas():
    totals = [lc.cost("gpt2", n_layer=1, plan=plan).total for plan in (["flash", "chunked-loss"], "flash,chunked-loss")]
    assert totals[0] == totals[1]


def test_a_path_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1}')
    assert lc.cost(tmp_path).total == lc.cost("gpt2", n_layer=1).total
