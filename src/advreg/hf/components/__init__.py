"""The parts of an attachment: each takes over some of a trainer's methods."""
