"""What on_cuda.py measures, a module for each section."""
