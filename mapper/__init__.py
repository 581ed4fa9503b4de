"""mapper: how an ONNX model should run on this machine, and what keeps it from running faster."""

__version__ = "0.1.0"
