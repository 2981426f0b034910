"""The schedule of a step: its lines as the calls of a runner, what each keeps, and when memory comes back."""
