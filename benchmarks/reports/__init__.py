"""Sixty public reports and questions about cost and memory, each with its right answer by an independent oracle.

reports.toml  the list: where a report stands, what is asked, the command that answers it, the right answer
"""
