"""The loading of a program's text, so that it runs on arrays without values."""

from __future__ import annotations

import ast
from typing import Any

from learncost.program.account import FILE, AllocationLog
from learncost.program.fake_arrays.between import DeviceMesh
from learncost.program.fake_arrays.functions import NumPy
from learncost.program.fake_arrays.operators import binary, compare, unary
from learncost.program.fake_arrays.torch import Functional, Torch

WRITTEN = ("erf", "hashed", "coin")
"""Elementwise functions that a program defines at its top; they are replaced in the program's namespace."""


class _Spelled(ast.NodeTransformer):
    """Rewrites operators as calls with flags for temporary operands; NumPy is not imported."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Replace an in-place addition by its value, since it allocates nothing itself."""
        self.generic_visit(node)
        return ast.copy_location(ast.Expr(node.value), node)

    def visit_Import(self, node: ast.Import) -> ast.Import | None:
        return None if node.names[0].name == "numpy" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        temporaries = ast.Tuple([ast.Constant(_temporary(operand)) for operand in (node.left, node.right)], ast.Load())
        self.generic_visit(node)
        return _call("binary_", node, ast.Constant(type(node.op).__name__), node.left, node.right, temporaries)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        is_temporary = ast.Constant(_temporary(node.operand))
        self.generic_visit(node)
        return _call("unary_", node, ast.Constant(type(node.op).__name__), node.operand, is_temporary)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
            return node
        return _call("compare_", node, node.left, node.comparators[0])


def _temporary(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call)


def _call(name: str, at: ast.expr, *arguments: ast.expr) -> ast.expr:
    call = ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
    return ast.fix_missing_locations(ast.copy_location(call, at))


def loaded_on_torch(text: str, account: AllocationLog) -> dict[str, Any]:
    """Return the namespace of a program for PyTorch, ready to be called with tensors of this log."""
    names: dict[str, Any] = {"__name__": FILE, "torch": Torch(account), "functional": Functional()}
    names["DeviceMesh"] = DeviceMesh
    lines = ["" if line.startswith(("import torch", "from torch")) else line for line in text.splitlines()]
    exec(compile("\n".join(lines), FILE, "exec"), names)
    names |= {name: names["torch"].of_each for name in WRITTEN if name in names}
    return names


def loaded(text: str, account: AllocationLog) -> dict[str, Any]:
    """Return the namespace of a program for NumPy, ready to be called with arrays of this log."""
    numpy = NumPy(account)
    names: dict[str, Any] = {"__name__": FILE, "np": numpy, "binary_": binary, "unary_": unary, "compare_": compare}
    exec(compile(_Spelled().visit(ast.parse(text)), FILE, "exec"), names)
    names |= {name: numpy.of_each for name in WRITTEN if name in names}
    return names
