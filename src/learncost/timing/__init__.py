"""Predict the seconds of every line on a device from its operations, its bytes and the attained rates.

`work` groups lines into kernels, `rates` has a device's attained rates, `predict` combines both.
"""
