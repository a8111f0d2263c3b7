"""What is measured: pure tensors in, plain numbers out; no files, no models, no printing."""
