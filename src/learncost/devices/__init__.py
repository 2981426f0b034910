"""Devices and clusters: what is published and measured of them, what they attain, and what is assumed."""
