"""Tables and pictures, drawn from records alone."""
