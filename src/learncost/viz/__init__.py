"""Pictures: reports, an explorer, figures and traces, drawn from the same calls as the command line."""
