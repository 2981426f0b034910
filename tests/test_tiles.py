"""Gradients of what is read place by place: nothing is added that has no place in common."""

import learncost as lc

STACK = """stack(X; W) -> Y
  A[B d'] = X[B d] W[n=0[] d d']
  C[B d'] = A[B d] W[n=1[] d d']
  Y[B d'] = C[B d] W[n={last}[] d d']
sizes: n=3 d=4
"""


def reversed_lines(text):
    return str(lc.derive(lc.layer(text)).reverse).splitlines()


def test_a_stack_that_is_read_place_by_place_has_its_gradient_joined():
    lines = reversed_lines(STACK.format(last=2))
    assert lines[-1] == "dW[n d d'] = dW+3[1=n d d'] + dW+2[1=(n - #1) d d'] + dW+1[1=(n - 2 #1) d d']"
    step = lc.derive(lc.layer(STACK.format(last=2))).step
    assert sum(row.flops.at({"B": 5, "d": 4}) for row in lc.price(step, {"n": 3}, "run").rows) == 9 * 2 * 5 * 4 * 4


def test_what_is_read_twice_at_a_place_is_added_there_alone():
    text = STACK.format(last=2).replace("sizes", "  Z[B d'] = Y[B d] W[n=1[] d d']\nsizes").replace("-> Y", "-> Z")
    lines = reversed_lines(text)
    assert "dW:1[1 d d'] = dW+1[1 d d'] + dW+3[1 d d']" in lines
    assert lines[-1].startswith("dW[n d d'] = ")


def test_a_place_that_nothing_reads_has_a_gradient_of_zero():
    assert reversed_lines(STACK.format(last=0))[-1] == "dW[n d d'] = dW+1:put[n d d'] + dW+2[n d d']"


def test_what_is_read_at_places_of_two_axes_is_joined_along_both():
    text = """two(X) -> Y
  A[d] = X[n=0[] m=0[] d] X[n=1[] m=0[] d]
  C[d] = X[n=0[] m=1[] d] X[n=1[] m=1[] d]
  Y[d] = A[d] + C[d]
sizes: n=2 m=2 d=3
"""
    assert "dX:0[1 m d] = dX+3[1 1'=m d] + dX+1[1 1'=(m - #1) d]" in reversed_lines(text)
    assert reversed_lines(text)[-1] == "dX[n m d] = dX:0[1=n m d] + dX:1[1=(n - #1) m d]"
    assert lc.check_layer(lc.layer(text)).passed
    assert lc.price(lc.derive(lc.layer(text)).reverse, {"n": 2, "m": 2, "d": 3}, "run").flops == 4 * 3  # none is added


def test_parts_at_the_same_places_are_added_before_they_are_put_there():
    text = """same(X) -> Y
  A[d] = X[n=0[] d] X[n=0[] d]
  C[n d] = exp(X[n d])
  Y[n d] = C[n d] A[d]
"""
    merges = [row for row in lc.price(lc.derive(lc.layer(text)).step, {}, "run").rows if row.line == "merge"]
    assert [str(row.flops) for row in merges] == ["d", "d n"]
    assert lc.check_layer(lc.layer(text)).passed


def test_the_joined_gradient_is_that_of_finite_differences():
    for last in (0, 2):
        assert lc.check_layer(lc.layer(STACK.format(last=last))).passed


def test_another_size_is_taken_at_its_word():
    model = lc.layer(STACK.format(last=2))
    assert lc.cost(model, B=5, n=4).total.flops > lc.cost(model, B=5).total.flops
