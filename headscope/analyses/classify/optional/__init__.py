"""Measurements of ``classify`` beside the roles, each only where it is asked for."""
