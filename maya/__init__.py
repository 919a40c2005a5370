"""Maya predicts how an unmodified PyTorch training script performs on a GPU cluster, without a GPU."""

__version__ = "0.1.0"
