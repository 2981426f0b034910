"""Search for parallel configurations of a training on a cluster, and their cost."""
