"""The explorer as a server on this machine, and the page that watches trainings."""
