"""Machine translation, from raw text to a BLEU score."""
