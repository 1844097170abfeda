"""How `nki.jit` makes a kernel of a function, and how a dynamic loop is given its body."""

from __future__ import annotations

import ast

from dslearn.sim.lint.module import Definition, Module

# Dotted name -> position of the body among the arguments.
DYNAMIC_LOOPS = {"nki.language.fori_loop": 2, "nki.language.while_loop": 1}


def decorated(module: Module, node: Definition) -> bool:
    """Whether `node` is a function that carries `@nki.jit`, with or without arguments."""
    if isinstance(node, ast.ClassDef):
        return False
    heads = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return any(module.resolve(head) == "nki.jit" for head in heads)


def wrapped(module: Module, node: ast.AST) -> ast.expr | None:
    """The `f` of `nki.jit(f)` or `nki.jit(...)(f)`; None when `node` is neither."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    head = node.func
    if isinstance(head, ast.Call) and not head.args:
        head = head.func
    return node.args[0] if module.resolve(head) == "nki.jit" else None


def wraps(module: Module, node: ast.AST) -> bool:
    """Whether `node` makes a kernel: `nki.jit(f)`, or a function that carries `@nki.jit`."""
    if isinstance(node, ast.FunctionDef):
        return decorated(module, node)
    return wrapped(module, node) is not None


def loop_body(module: Module, call: ast.Call) -> ast.expr | None:
    """The body that a dynamic loop is given; None when `call` is no dynamic loop."""
    position = DYNAMIC_LOOPS.get(module.resolve(call.func))
    if position is None:
        return None
    for keyword in call.keywords:
        if keyword.arg == "body_fun":
            return keyword.value
    return call.args[position] if len(call.args) > position else None
