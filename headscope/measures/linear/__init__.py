"""Attention without the softmax: its forms, what it errs by, and how alike keys are."""
