"""A Hugging Face model as methods see it."""
