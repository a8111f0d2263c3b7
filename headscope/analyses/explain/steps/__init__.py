"""The twelve steps of ``explain``: each with what it measures beside what is said of it."""
