"""The laboratory: tasks, runs, comparisons, studies, benchmarks and reports. The library does not
import it.
"""
