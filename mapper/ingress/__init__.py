"""Ingress: reads an ONNX model, binds it, normalises it, feeds it, and accounts for every original node."""
