"""What a method costs: passes, time per step, memory; measured side by side and written as one
record.
"""
