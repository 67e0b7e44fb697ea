"""Kinds of task: their models, batches and trainers."""

SCRATCH = "small"
"""Name of the model that is built from scratch, with a tokenizer trained on the training texts."""
