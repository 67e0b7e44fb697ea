"""Kinds of task: their models, batches and trainers."""
