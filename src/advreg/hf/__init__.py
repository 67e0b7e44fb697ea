"""The only layer that imports transformers: trainer, collators, tokenizers, and where δ enters a
model.
"""
