"""ONNX: a model as one graph, run by onnxruntime. The only place that knows either."""
