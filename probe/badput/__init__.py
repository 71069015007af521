"""badput books every GPU-second of a training run exactly once, and prices it."""

__version__ = "0.1.0"
