"""What to run: the tasks, where their data comes from, and how a run of one is put together."""
