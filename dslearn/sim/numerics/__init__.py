"""What the instructions compute, on NumPy arrays: no tensor class, no memory, no checks.

Axis 0 is the partition axis P everywhere; the free axes follow. Facts: docs/reference/nki.md.
"""
