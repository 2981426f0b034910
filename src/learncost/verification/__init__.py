"""Verification: tables compared with finite differences, with executed operations and with other implementations."""
