"""Methods that add random noise."""
