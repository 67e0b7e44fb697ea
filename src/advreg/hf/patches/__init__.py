"""Work-arounds for other libraries; README.md says what each does and when it can go."""
