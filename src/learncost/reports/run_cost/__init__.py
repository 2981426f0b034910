"""Devices and what a whole run on them takes: days, energy, carbon, price, each figure with its label and source."""
