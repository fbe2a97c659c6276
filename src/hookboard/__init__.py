"""See inside the model you train: Lightning callbacks that put what flows through its layers on TensorBoard."""

__version__ = "0.1.0"
