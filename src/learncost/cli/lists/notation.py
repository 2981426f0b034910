"""What tables are written with: the shipped layers, and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from learncost.cli.lists.listed import Known, Listed, cell_of


def _layers() -> Listed:
    from learncost.layers.layer import shipped, shipped_layer

    entries: list[Known] = [{"name": name, "source": shipped_layer(name).source} for name in shipped()]
    return Listed(entries, {"layer": cell_of("name"), "source": cell_of("source")})


def _words() -> Listed:
    from learncost.ops import entries

    op_defs: list[Known] = [{"name": op.name, "kind": op.kind, "source": op.source} for op in entries()]
    return Listed(op_defs, {"word": cell_of("name"), "kind": cell_of("kind"), "source": cell_of("source")})


NOTATION: Mapping[str, Callable[[], Listed]] = {
    "layers": _layers,
    "words": _words,
}
