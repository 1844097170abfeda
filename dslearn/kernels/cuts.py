"""How two cores share things that do not fill the lanes: tokens, columns, rows of a search."""

from __future__ import annotations

import nki.language as nl


def pieces(total: int, most: int, cores: int = 0) -> list[tuple[int, int]]:
    """(first, number) of what this core does of `total` things, at most `most` >= 2 at once.

    Pieces differ by one at most. A single thing is done by both cores.

    Args:
        total, most: numbers of things.
        cores: cut for so many cores, 0 for those of the launch. Where the size of a piece decides
            the order of a sum, 2: then one core computes the same pieces, and its bytes are those
            of two.
    """
    launched, core = nl.num_programs(), nl.program_id(axis=0)
    cores = cores if cores else launched
    if total < cores:
        return [(0, total)]
    number = cores * -(-total // (cores * most))
    found = []
    for i in range(number):
        start, stop = total * i // number, total * (i + 1) // number
        found.append((start, stop - start))
    mine = number // launched
    return found[core * mine : core * mine + mine]


def largest(total: int, most: int) -> int:
    """How many things the largest of all `pieces` for two cores has, on either core."""
    return total if total < 2 else -(-total // (2 * -(-total // (2 * most))))


def place(
    shape: tuple[int, ...], dtype: nl.DType, single: bool
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """The result in shared HBM, and where this core writes: its own memory if both do the same.

    Args:
        shape, dtype: of the result.
        single: there is one thing only, see `pieces`; two cores must not write one place.
    """
    shared = nl.ndarray(shape=shape, dtype=dtype, buffer=nl.shared_hbm)
    if single and nl.program_id(axis=0) == 1:
        return shared, nl.ndarray(shape=shape, dtype=dtype, buffer=nl.private_hbm)
    return shared, shared
