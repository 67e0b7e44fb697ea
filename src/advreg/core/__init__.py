"""Torch-only building blocks: perturbations, balls, the ascent, divergences, the refresh
schedule.
"""
