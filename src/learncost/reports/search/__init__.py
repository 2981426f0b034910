"""Search how to spread a training over the devices of a cluster, and price one such way."""
