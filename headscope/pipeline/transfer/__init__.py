"""Fine-tuning parts of a model."""
