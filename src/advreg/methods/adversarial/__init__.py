"""Methods that search for the worst perturbation."""
