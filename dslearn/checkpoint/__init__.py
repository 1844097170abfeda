"""Checkpoints on disk: what they must hold, how they are read, written, hashed and shown."""
