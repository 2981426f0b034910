"""Reports, the explorer, figures and traces, drawn from the answers of the commands."""
