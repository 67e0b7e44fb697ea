"""Work-arounds for other libraries; README.md lists what each does and when it can go."""
