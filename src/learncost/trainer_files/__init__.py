"""Read the configuration files of trainers: which framework a file is of, and the training step that it describes.

A framework is data, `frameworks/NAME.toml`: how its files are recognised, the defaults of its keys, and rules from keys
to the fields of a `Step`. Nothing in a file is run, imported or fetched.
"""
