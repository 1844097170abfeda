"""Graphs with a planted culprit."""

from __future__ import annotations

from random import Random

import torch
from torch import fx

from dslearn.regions.workshop import Case, Fault
from dslearn.regions.workshop.case import describe
from dslearn.regions.workshop.rule_compiler import feeds, operation

aten = torch.ops.aten
ONE = (aten.relu, aten.tanh, aten.sigmoid, aten.neg, aten.abs)
PAIR = feeds("erf", "cos")
CRASH = Fault(PAIR, "NCC_IINL902", "InsertLoops")


def planted(operations: int, places: tuple[int, int] = (60, 130), seed: int = 0) -> Case:
    """A graph of that many operations on [4, 8]; at `places` an erf, and a cos that reads it."""
    random, graph = Random(seed), fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for i in range(operations):
        if i == places[0]:
            erf = graph.call_function(aten.erf.default, (values[-1],))
            values.append(erf)
        elif i == places[1]:
            values.append(graph.call_function(aten.cos.default, (erf,)))
        elif random.random() < 0.5:
            operation = random.choice(ONE).default
            values.append(graph.call_function(operation, (random.choice(values[-4:]),)))
        else:
            pair = tuple(random.choice(values[-4:]) for _ in range(2))
            values.append(graph.call_function(aten.minimum.default, pair))
    graph.output(tuple(values[-3:]))
    examples = torch.linspace(-1, 1, 32).view(4, 8), torch.linspace(2, -2, 32).view(4, 8)
    return Case(fx.GraphModule(torch.nn.Module(), graph), describe(examples))


def names(case: Case) -> list[str]:
    """The operations of a graph, in order."""
    return [operation(node) for node in case.operations]
