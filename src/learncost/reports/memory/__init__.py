"""The memory of a step: its peak, what fits a device, and the engines that execute it."""
