"""The cost of methods (passes, time per step, memory), measured in alternation, as one record."""
