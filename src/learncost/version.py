"""The version of this package, which every module may name."""

__version__ = "0.1.0"
