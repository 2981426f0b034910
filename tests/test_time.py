"""Time: the model's arithmetic by hand, its bounds, and what lines, kernels and operators move and compute."""

from dataclasses import replace

import pytest

import learncost as lc
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.ir.line import FusedKernel
from learncost.models.configuration import configure
from learncost.timing.predict import time
from learncost.timing.rates import MatmulGrid, RateCurve
from learncost.timing.work import works
from timings import GPT2, SIZES, flat, model_rows, rows_of

PRODUCT = "own(X; W) -> Y\nY[B M f] = X[B M d] W[d f]"


def test_a_product_takes_the_larger_of_operations_and_bytes_and_its_launch():
    # 2 x 8 rows of 16 times 16 x 32: 2 x 16 x 16 x 32 = 16,384 FLOPs; 256 + 512 + 512 = 1,280 numbers of 4 bytes.
    rows = rows_of(PRODUCT)
    bound_by_compute = time(rows, SIZES, flat(flops=1e6, bandwidth=1e9, launch=1e-3))
    assert bound_by_compute.total == pytest.approx(16_384e-6 + 1e-3)
    assert [part.bound for part in bound_by_compute.parts] == ["compute"]
    bound_by_memory = time(rows, SIZES, flat(flops=1e12, bandwidth=1e5))
    assert bound_by_memory.total == pytest.approx(5_120 / 1e5)
    assert [part.bound for part in bound_by_memory.parts] == ["memory"]
    assert [part.bound for part in time(rows, SIZES, flat(1e12, 1e12, launch=1.0)).parts] == ["launch"]


def test_calls_of_a_device_that_queues_are_hidden_behind_what_runs():
    # Two kernels of 256 numbers read and 256 written: 2,048 bytes each at 1 MB/s.
    rows = rows_of("own(X;) -> Y\nU[B M d] = relu(X[B M d])\nY[B M d] = relu(U[B M d])")
    hidden = time(rows, SIZES, flat(bandwidth=1e6, launch=2e-3, queues=True))
    assert hidden.total == pytest.approx(2 * 2_048e-6)
    assert hidden.step == 0
    waiting = time(rows, SIZES, flat(bandwidth=1e6, launch=3e-3, queues=True))
    assert waiting.total == pytest.approx(2 * 3e-3)
    assert waiting.step == pytest.approx(2 * (3e-3 - 2_048e-6))
    assert [part.bound for part in waiting.parts] == ["memory", "memory"]


def test_attention_on_a_published_device_has_about_the_rate_that_was_measured():
    # An H100 in bf16, forward and backward, by heads of 64 and of 128 (benchmarks/on_cuda.py).
    inner = lc.rates("H100-SXM", "bf16").inner
    assert inner.rate(1024, 1024, 64) == pytest.approx(2.6e14, rel=0.15)
    assert inner.rate(64, 1024, 1024) == inner.rate(1024, 1024, 64)
    assert inner.rate(1024, 1024, 128) == pytest.approx(5.9e14, rel=0.4)


def test_half_the_type_moves_half_the_bytes():
    rates = flat(flops=1e15, bandwidth=1e5)
    assert time(rows_of(PRODUCT), SIZES, rates, "bf16").total == pytest.approx(2_560 / 1e5)


def test_words_take_their_own_time_or_that_of_their_primitives():
    rows = rows_of("own(X;) -> Y\nY[B M d] = relu(X[B M d])")
    assert time(rows, SIZES, flat(bandwidth=1e15, ops={"relu": 1e-6})).total == pytest.approx(256e-6)
    # relu's body is one maximum with zero.
    assert time(rows, SIZES, flat(bandwidth=1e15, ops={"maximum": 3e-6})).total == pytest.approx(768e-6)
    assert time(rows, SIZES, flat(bandwidth=1e6)).total == pytest.approx(2_048e-6)  # nothing known but its bytes


TWO = "own(X; b) -> Y\nU[B M d] = X[B M d] + b[d]\nY[B M d] = relu(U[B M d])"


def test_what_stays_inside_of_a_kernel_moves_no_bytes():
    # Apart: X, b, U written; U read, Y. In a kernel: X, b, Y. Each of X, U, Y has 256 numbers, b has 16.
    rates = flat(bandwidth=1e6, operators=False, launch=1.0)
    apart, together = (time(rows_of(TWO, kernel), SIZES, rates) for kernel in (None, FusedKernel("own", ("B", "M"))))
    assert apart.total == pytest.approx(4e-6 * (4 * 256 + 16) + 2)
    assert together.total == pytest.approx(4e-6 * (2 * 256 + 16) + 1)


def test_operators_take_a_bias_along_with_its_product():
    text = "own(X; W b) -> Y\nU[B M f] = X[B M d] W[d f]\nY[B M f] = U[B M f] + b[f]"
    rates = flat(flops=1e15, bandwidth=1e6, launch=1.0)
    assert time(rows_of(text), SIZES, rates).total == pytest.approx(4e-6 * (256 + 512 + 512 + 32) + 1)
    apart = time(rows_of(text), SIZES, replace(rates, operators=False))
    assert apart.total == pytest.approx(4e-6 * (256 + 512 + 512 + 2 * 512 + 32) + 2)


def test_another_name_of_an_array_is_no_work():
    rows, sizes = model_rows()
    placed = {row for part in time(rows, sizes, flat()).parts for row in part.rows}
    left = [rows[i].text for i in range(len(rows)) if i not in placed]
    assert left
    assert all(text.count("[") == 2 and "(" not in text for text in left)  # dF[B M d] = dX.3[B M d] and its like


def test_orientations_are_those_of_a_linear_layer():
    # Y = X W: both as they lie; dX = dY W': the second transposed; dW = X' dY: the first.
    step = lc.derive(lc.layer(PRODUCT)).step
    rows = price(step, SIZES, book("run")).rows
    products = {rows[work.rows[0]].line: work.products[0] for work in works(rows, SIZES, "fp32", True)}
    shapes = {
        name: (product.orientation, product.batch, product.m, product.n, product.k)
        for name, product in products.items()
    }
    assert shapes == {"Y": ("NN", 1, 16, 32, 16), "dX": ("NT", 1, 16, 16, 32), "dW": ("TN", 1, 16, 32, 16)}


@pytest.mark.parametrize("plan", ["", "fused", "fused,fused-update"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_products_are_those_that_the_matmul_book_counts(kind, plan):
    # The book reads axes by its own rule, and torch's FlopCounterMode agrees with it (test_flop_counter).
    keys = GPT2 if kind == "gpt2" else {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 16, "vocab_size": 50,
    }  # fmt: skip
    rows, sizes = model_rows(keys, plan)
    counted = sum(
        work.iterations * product.flops for work in works(rows, sizes, "fp32", True) for product in work.products
    )
    assert counted == lc.cost(configure(keys), "bp", "matmul", batch_size=2, seq_len=16, plan=plan).total.flops


def test_flash_computes_the_visible_share_of_its_blocks():
    # A block of queries sees the keys up to its last query: 128 queries in blocks of 64 see 64 and 128 of 128 keys,
    # three quarters; the mean over the blocks is written out here for any size of them.
    rows, sizes = model_rows(GPT2 | {"n_positions": 128}, "flash", length=128)
    inside = [work for work in works(rows, sizes, "fp32", False) if work.together]
    assert len(inside) == 2
    for work in inside:
        most = rows[work.rows[0]].source.meta.kernel.blocks[1]
        ends = range(most, 129, most)
        assert work.share == pytest.approx(sum(ends) / len(ends) / 128)
        assert {product.batch for product in work.products} == {2 * 2 * len(ends)}  # sequences, heads, blocks


def test_adamw_moves_twenty_eight_bytes_a_parameter():
    # Weight, gradient and two moments are read, all but the gradient written: seven numbers of four bytes; the nine
    # scalars of a step beside them.
    rows, sizes = model_rows()
    moved = [sum(w.bytes.values()) for w in works(rows, sizes, "fp32", False) if w.phase == "optimizer_step"]
    parameters = lc.cost(configure(GPT2), seq_len=16).parameters
    assert sum(moved) == 28 * parameters + 9 * 4 * len(moved)


def test_twice_the_rate_halves_what_compute_bounds():
    rows, sizes = model_rows()
    slower, two = (time(rows, sizes, flat(flops=rate, bandwidth=1e15)) for rate in (1e6, 2e6))
    pairs = [(a, b) for a, b in zip(slower.parts, two.parts, strict=True) if a.bound == "compute"]
    assert len(pairs) > 20
    assert all(a.total == pytest.approx(2 * b.total) for a, b in pairs)


@pytest.mark.parametrize("plan", ["", "flash,fused"])
def test_more_work_takes_longer_and_a_faster_device_less(plan):
    def total(batch, **rates):
        return time(*model_rows(plan=plan, batch=batch), flat(launch=1e-6, **rates)).total

    times = [total(batch) for batch in (1, 2, 4, 8)]
    assert times == sorted(times)
    assert total(2, flops=2e9) <= total(2) >= total(2, bandwidth=2e9)


def test_the_interval_is_around_the_time():
    rows, sizes = model_rows()
    predicted = time(rows, sizes, flat(low=0.5, high=3.0, step=1.0))
    assert (predicted.low, predicted.high) == (0.5 * predicted.total, 3 * predicted.total)
    assert predicted.total == pytest.approx(1 + sum(predicted.bounds.values()))


def test_what_was_touched_lately_comes_from_the_cache():
    # X and b were touched a step ago, which is 4 (256 + 16 + 256 + 256 + 256) bytes; U just before, with 4 x 528 since.
    rates = flat(operators=False)
    rates = replace(rates, bandwidth=RateCurve((3000.0, 3001.0), (1e9, 1e3)))
    predicted = time(rows_of(TWO), SIZES, rates)
    assert [part.memory for part in predicted.parts] == pytest.approx([2_112 / 1e3, 1_024 / 1e9 + 1_024 / 1e3])


def test_large_results_lie_in_new_memory():
    # 4,096 x 4,096 numbers of 4 bytes are 64 MiB, above the 32 MiB at which glibc goes to the system; X alone is read.
    rows = rows_of("own(X;) -> Y\nY[B M d] = relu(X[B M d])")
    sizes = {"B": 1, "M": 4096, "d": 4096}
    slow, fast = (time(rows, sizes, flat(bandwidth=1e9, fresh=fresh)).total for fresh in (1e-9, 0.0))
    assert slow - fast == pytest.approx(2**26 * 1e-9)
    small = sizes | {"M": 2048}
    assert time(rows, small, flat(fresh=1e-9)).total == time(rows, small, flat()).total


def test_curves_and_grids_are_straight_in_logarithms():
    curve = RateCurve((1e3, 1e5), (1e9, 1e7))
    assert [curve(place) for place in (1, 1e3, 1e4, 1e5, 1e9)] == pytest.approx([1e9, 1e9, 1e8, 1e7, 1e7])
    grid = MatmulGrid(
        (10, 1000), (1e6, 1e8, 1e8, 1e10, 1e8, 1e10, 1e10, 1e12)
    )  # of each size its square root times ten
    assert grid.rate(10, 10, 1000) == pytest.approx(1e8)
    assert grid.rate(100, 10, 10) == pytest.approx(1e7)
    assert grid.rate(100, 100, 100) == pytest.approx(1e9)
    assert grid.seconds(1, 10, 1000) == grid.seconds(10, 10, 1000)  # fewer rows than were measured: no faster
    assert grid.rate(5000, 10, 10) == grid.rate(1000, 10, 10)


def test_a_missing_size_is_named():
    with pytest.raises(lc.InputError, match="time needs every size: give M"):
        time(rows_of(PRODUCT), {"B": 1, "d": 2, "f": 2}, flat())
