"""Import a PyTorch module: translate its exported graph node by node into a table. Only this package imports torch."""
