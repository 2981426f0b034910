"""Define learning procedures as schedules of passes, and build the tables of their steps."""
