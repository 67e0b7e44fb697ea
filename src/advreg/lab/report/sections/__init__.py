"""What a report says, one section a file."""
