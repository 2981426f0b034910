"""Devices: what is published and measured of them, what they attain, and what is assumed where nothing is known."""
