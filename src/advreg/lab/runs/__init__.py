"""One run: its settings, its plan, its training and its record."""
