"""Methods that make two predictions of the same text agree."""
