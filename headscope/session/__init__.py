"""What every run shares: opening a model, its texts, checks of parameters, resuming."""
