"""Checkpoints: sealed, complete, and resumed to the bit."""
