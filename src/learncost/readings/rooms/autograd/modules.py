"""A model's table as a person writes it in PyTorch: its lines as calls of `torch.nn.functional`.

Products of one value with several weights of a layer are one product, cut afterwards; a bias is added in the product;
scores, softmax and values are one fused attention; a norm has its scale and shift, log-softmax its loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from learncost.equation.errors import InputError
from learncost.equation.table import Line, Literal, Product, Repeat, Statement, Sum, Term, Word

NORMS = ("normalize", "rms_normalize")


@dataclass(frozen=True)
class Call:
    """Lines that are one call.

    kind     linear, attention, norm, loss, rotary, or line: a line by itself
    makes    what others read of it
    weights  of a linear call, and its biases; of a norm, its scale and shift
    """

    kind: str
    lines: tuple[Line, ...]
    makes: tuple[Term, ...]
    weights: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The names that it needs from others."""
        made = {name for line in self.lines for name in line.makes}
        return tuple(dict.fromkeys(name for line in self.lines for name in line.reads if name not in made))


class Scope:
    """The calls of the lines of one scope; `weights` are the names that are weights there."""

    def __init__(self, lines: Sequence[Statement], weights: Collection[str]) -> None:
        self.lines, self.weights = lines, weights
        self.readers: dict[str, list[Statement]] = {}
        for line in lines:
            for name in line.reads:
                self.readers.setdefault(name, []).append(line)

    def calls(self) -> Iterator[Call | Repeat]:
        """Call by call, in the order of the lines that they begin with."""
        done: set[str] = set()
        for line in self.lines:
            if isinstance(line, Repeat):
                yield line
            elif line.name not in done:
                call = self._call(line)
                done |= {name for own in call.lines for name in own.makes}
                yield call

    def _call(self, line: Line) -> Call:
        if self._weight_of(line):
            return self._linear(line)
        if isinstance(line, Word) and line.word in NORMS:
            return self._norm(line)
        if isinstance(line, Word) and line.word == "log_softmax":
            return self._loss(line)
        if isinstance(line, Product) and len(line.right) == 2 and line.sides.sums:
            return self._attention(line)
        if found := self._rotary(line):
            return found
        return Call("line", (line,), line.left)

    def _weight_of(self, line: Line) -> str:
        """The weight of a product that sums over features; empty where it is none."""
        if not (isinstance(line, Product) and len(line.right) == 2 and line.sides.sums):
            return ""
        found = [term.name for term in line.right if term.name in self.weights and not term.indexed]
        return found[0] if len(found) == 1 else ""

    def _linear(self, line: Line) -> Call:
        value = _other(line, self._weight_of(line))
        lines: list[Line] = []
        makes: list[Term] = []
        weights, biases = [], []
        for one in self.readers[value]:
            if not isinstance(one, Line) or one.tag.layer != line.tag.layer:
                continue
            weight = self._weight_of(one)
            if not weight or _other(one, weight) != value:
                continue
            weights.append(weight)
            lines.append(one)
            makes.append(one.left[0])
            if added := self._only(one.name, Sum):
                other = _other(added, one.name)
                if len(added.right) == 2 and other in self.weights and not any(t.indexed for t in added.right):
                    lines.append(added)
                    biases.append(other)
                    makes[-1] = added.left[0]
        return Call("linear", tuple(lines), tuple(makes), tuple(weights), tuple(biases))

    def _norm(self, line: Word) -> Call:
        lines: list[Line] = [line]
        weights = []
        for kind in (Product, Sum) if line.word == "normalize" else (Product,):
            following = self._only(lines[-1].name, kind)
            other = _other(following, lines[-1].name) if following and len(following.right) == 2 else ""
            if following is None or other not in self.weights:
                break
            lines.append(following)
            weights.append(other)
        return Call("norm", tuple(lines), lines[-1].left, tuple(weights))

    def _loss(self, line: Line) -> Call:
        lines = [line]
        while lines[-1].left[0].axes:
            following = self._only(lines[-1].name, Product)
            if following is None:
                raise unknown(line)
            lines.append(following)
        return Call("loss", tuple(lines), lines[-1].left)

    def _attention(self, line: Line) -> Call:
        lines = [line]
        while True:
            following = self._only(lines[-1].name, Line)
            if following is None or any(condition.window for condition in following.where):
                raise unknown(line)
            lines.append(following)
            if isinstance(following, Product) and following.sides.sums:
                break
            scales = isinstance(following, Product) and isinstance(following.right[1], Literal)
            if not scales and not (isinstance(following, Word) and following.word == "softmax"):
                raise unknown(following)
        if sum(isinstance(one, Word) for one in lines) != 1:
            raise unknown(line)
        return Call("attention", tuple(lines), lines[-1].left)

    def _rotary(self, line: Line) -> Call | None:
        """A value times a cosine, and with its halves exchanged times a sine."""
        added = self._only(line.name, Sum) if isinstance(line, Product) and len(line.right) == 2 else None
        value = line.right[0]
        if added is None or not isinstance(value, Term) or value.name in self.weights:
            return None
        for one in self.readers[value.name]:
            if isinstance(one, Line) and added in self.readers.get(one.name, ()) and one.right[0].indexed:
                return Call("rotary", (line, one, added), added.left)
        return None

    def _only(self, name: str, kind: type[Line]) -> Line | None:
        """The only line that reads a name, if it is of a kind."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and isinstance(found[0], kind) else None


def _other(line: Line, name: str) -> str:
    return next((term.name for term in line.right if term.name != name), "")


def unknown(line: Line) -> InputError:
    """What is said of a line that is no call."""
    return InputError(f"what autograd keeps of this line is not known: {line}")
