"""The axes of a product by their function: rows, columns, summed, batch."""

import pytest

import learncost as lc
from learncost.ir.line import Product
from learncost.ir.loop import walk

CASES = {
    "Y[M f] = X[M d] W[d f]": ("M", "f", "d", "", ""),
    "Y[f M] = X[M d] W[d f]": ("M", "f", "d", "", ""),
    "S[h M N] = Q[h M k] K[h N k]": ("M", "N", "k", "h", ""),
    "Y[B M h] = X[B M h k] Z[B M h k]": ("", "", "k", "B M h", ""),
    "Y[M d] = X[M d] g[d]": ("M", "", "", "d", ""),
    "Y[M d] = 0.5[] X[M d]": ("", "M d", "", "", ""),
    "Y[M] = 1[] X[M d]": ("", "M", "", "", "d"),
}


@pytest.mark.parametrize(("line", "expected"), CASES.items())
def test_every_axis_is_of_one_side(line, expected):
    inputs = [op.partition("[")[0] for op in line.split(" = ")[1].split() if op[0].isalpha() and "[" in op]
    layer = lc.layer(f"one({', '.join(inputs)}) -> {line[0]}\n  {line}\n")
    (product,) = (product_line for product_line, _ in walk(layer.table.lines))
    assert isinstance(product, Product)
    sides = product.sides
    sides_found = (sides.rows, sides.columns, sides.summed, sides.batch, sides.lone)
    assert tuple(" ".join(axes) for axes in sides_found) == expected
    assert sides.are_of_matrices == bool(expected[0] and expected[1] and expected[2])
    assert sides.sums == bool(expected[2] or expected[4])
    assert sorted(axis for axes in sides_found for axis in axes) == sorted(product.loops)
