"""Figures, and their drawing as SVG."""
