"""Import any PyTorch module: its exported graph is read node by node into a table. Only this package imports torch."""
