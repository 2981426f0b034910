"""Collectives of a step in place, bucketed into messages, with results at given addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from learncost.ir.errors import InputError
from learncost.ir.line import Op
from learncost.ir.polynomial import place_cut
from learncost.ir.term import Term
from learncost.ops.collectives import REDUCES

MESH = "mesh"
"""The name of the DeviceMesh in programs."""

_SENT = "torch.ops._c10d_functional"

MESSAGE = 25 << 20
"""The largest bucket in bytes: the default of PyTorch's DistributedDataParallel, bucket_cap_mb."""

HELPERS: Mapping[str, str] = {
    "all_gather": f'''\
def all_gather(mesh, over, *arrays):
    """The parts of all devices along an axis of the mesh: of each array the whole, the part, rows before the cut."""
    group = mesh.get_group(over)
    number, sizes = group.size(), [part.numel() for _, part, _ in arrays]
    sent = [part.view(-1) for _, part, _ in arrays]
    sent = torch.cat(sent) if len(sent) > 1 else sent[0]
    parts = {_SENT}.all_gather_into_tensor(sent, number, group.group_name)
    parts = {_SENT}.wait_tensor(parts).view(number, -1).split(sizes, 1)
    for (whole, _, rows), each in zip(arrays, parts, strict=True):
        each = each.view(number, rows, -1).transpose(0, 1)
        if whole.numel() < each.numel():  # the last shards are padded
            whole.view(rows, -1).copy_(each.flatten(1)[:, : whole.numel() // rows])
        else:
            whole.view(rows, number, -1).copy_(each)''',
    # An exchange followed by a sum, because gloo's reduce_scatter sends as much as all_reduce, twice the data.
    "reduce_scatter": f'''\
def reduce_scatter(mesh, over, *arrays):
    """This device's part of the sum of all along an axis of the mesh: of each array the part, the whole, the rows
    before the cut."""
    group = mesh.get_group(over)
    number, sizes = group.size(), [part.numel() for part, _, _ in arrays]
    sent = []
    for part, whole, rows in arrays:
        if whole.numel() < number * part.numel():  # the last shards are padded
            more = (number * part.numel() - whole.numel()) // rows
            whole = torch.nn.functional.pad(whole.view(rows, -1), (0, more))
        sent.append(whole.view(rows, number, -1).transpose(0, 1).reshape(number, -1))
    sent = torch.cat(sent, 1) if len(sent) > 1 else sent[0]
    ones = [1] * number
    parts = {_SENT}.all_to_all_single(sent, ones, ones, group.group_name)
    parts = {_SENT}.wait_tensor(parts).sum(0).split(sizes)
    for (part, _, _), each in zip(arrays, parts, strict=True):
        part.view(-1).copy_(each)''',
    # gloo serves every message by separate threads, which cost more than copies where there are more processes than
    # cores: small arrays travel together. What fills a message alone, by DDP's measure (bucket_cap_mb), is not copied.
    "all_reduce": f'''\
def all_reduce(mesh, over, how, *arrays):
    """What the arrays of all devices along an axis of the mesh come to: of each array the result, and what it is of."""
    group = mesh.get_group(over).group_name
    messages, left = [], -1
    for result, array in arrays:
        left -= result.nbytes
        if left < 0:
            messages.append([])
            left = {MESSAGE} - result.nbytes
        messages[-1].append((result, array))
    for message in messages:
        if len(message) == 1:
            ((result, array),) = message
            if result.data_ptr() != array.data_ptr():
                result.view(-1).copy_(array.view(-1))
            {_SENT}.wait_tensor({_SENT}.all_reduce_(result, how, group))
            continue
        sent = torch.cat([array.view(-1) for _, array in message])
        sent = {_SENT}.wait_tensor({_SENT}.all_reduce_(sent, how, group))
        for (result, _), each in zip(message, sent.split([result.numel() for result, _ in message]), strict=True):
            result.view(-1).copy_(each)''',
    "all_to_all": f'''\
def all_to_all(mesh, over, result, array, before, after):
    """What is cut on one axis along an axis of the mesh, cut on another one."""
    group = mesh.get_group(over)
    ones = [1] * group.size()
    sent = torch.stack(array.chunk(group.size(), after))
    sent = {_SENT}.all_to_all_single(sent, ones, ones, group.group_name)
    result.copy_(torch.cat({_SENT}.wait_tensor(sent).unbind(), before))''',
    "shard": '''\
def shard(mesh, over, result, array, place):
    """This device's part of what it has whole."""
    size, there = result.shape[place], array.shape[place]
    first = min(mesh.get_group(over).rank() * size, there)
    many = min(size, there - first)
    result.narrow(place, 0, many).copy_(array.narrow(place, first, many))
    result.narrow(place, many, size - many).zero_()''',
}
"""The helper of every collective that can be in place, by its op."""

Shape = Callable[[Sequence[str]], tuple[int, ...]]


def helper(op: str) -> str:
    """Return the name of a collective's helper. Raises `InputError` if it has none."""
    name = "all_reduce" if op in REDUCES else op
    if name not in HELPERS:
        raise InputError(f"{op} is not supported in place")
    return name


def written(lines: Sequence[Op], of: Callable[[str], str], shape: Shape) -> tuple[str, list[str]]:
    """Return the helper that computes collectives, and its arguments.

    of     what the program calls the array of a name
    shape  the numbers of axes
    """
    first = lines[0]
    if len(first.axes) > 1:
        raise InputError(f"{first.op} between some of the devices of {first.axes[0]} is not supported in place")
    name, over = helper(first.op), first.axes[0]
    arguments = [MESH, f'"{over}"']
    if name in ("all_to_all", "shard"):
        made, read = _terms(first)
        arguments += [f"{of(term.name)}.view({', '.join(map(str, shape(term.declared)))})" for term in (made, read)]
        if name == "all_to_all" and prod(shape(made.declared)) != prod(shape(read.declared)):
            raise InputError(f"{first.op} of padded shards is not supported in place")
        places = (place_cut(term.declared, over) for term in ((read, made) if name == "all_to_all" else (made,)))
        return name, [*arguments, *map(str, places)]
    if name == "all_reduce":
        arguments.append(f'"{REDUCES[first.op]}"')
    for line in lines:
        made, read = _terms(line)
        pair = f"{of(made.name)}, {of(read.name)}"
        if name != "all_reduce":
            part = read if name == "all_gather" else made
            place = place_cut(part.declared, over)
            pair += f", {prod(shape(part.declared[:place]))}"
        arguments.append(f"({pair})")
    return name, arguments


def _terms(line: Op) -> tuple[Term, Term]:
    """Return the result of a collective, and its operand."""
    read = line.right[0]
    assert isinstance(read, Term)
    return line.left[0], read
