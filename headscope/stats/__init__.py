"""Numbers with their uncertainty."""
