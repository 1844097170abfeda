"""What the notebooks import: print a source, draw and describe a figure, check an exercise.

Nothing in the library imports this package. `checks_NN` holds the checks of notebook NN.
"""

from dslearn.lessons.pictures import code_map, described, heat, number_lines
from dslearn.lessons.sources import show

__all__ = ["code_map", "described", "heat", "number_lines", "show"]
