"""Engines that run the tables of training steps on this machine."""
