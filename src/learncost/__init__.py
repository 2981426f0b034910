"""What learning costs a transformer, counted exactly."""

__version__ = "0.1.0"
