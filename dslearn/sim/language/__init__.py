"""`nki.language`: tensors, dtypes, op tokens, loops, programs, and the high-level functions."""
