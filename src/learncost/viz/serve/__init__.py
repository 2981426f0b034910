"""The server of the explorer and of the page of training runs, on this machine."""
