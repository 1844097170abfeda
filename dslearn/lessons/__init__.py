"""What the notebooks import: print a source, draw and describe a figure, check an exercise.

Nothing in the library imports this package. `checks_NN` holds the checks of notebook NN,
`held_out` a text that the shipped model has not seen.
"""

from dslearn.lessons.pictures import code_map, described, heat, matrix, number_lines
from dslearn.lessons.sources import show

__all__ = ["code_map", "described", "heat", "matrix", "number_lines", "show"]
