"""Many runs: comparisons, studies, probes, and the pool that works them off."""
