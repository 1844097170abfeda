"""Instructions of `nki.isa`, one file per family: check, read, compute, write, record."""
