"""What is written for others: saved folders, modelling code, ONNX graphs, model cards."""
