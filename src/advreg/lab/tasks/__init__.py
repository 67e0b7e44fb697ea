"""Data sets, and how a prediction on them is scored."""
