"""Children of the command line: the TVM worker and the onnxruntime reference, behind one wire format."""
