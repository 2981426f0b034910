"""Learning procedures as schedules of passes over tables."""
