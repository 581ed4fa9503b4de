"""From a canonical ONNX model to operators, fusion groups, plans and layouts; pure, no compiler involved."""
