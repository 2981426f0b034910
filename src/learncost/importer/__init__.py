"""Any PyTorch module as a table: its exported graph is read line by line into the notation. Only this imports torch."""
