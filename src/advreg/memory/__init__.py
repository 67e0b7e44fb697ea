"""What is remembered between steps: cached perturbations, and who is whose neighbour."""
