"""Floor 5: learning procedures as schedules of passes over tables."""
