"""What a training checks before and while it runs."""
