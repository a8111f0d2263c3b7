"""headscope: what each attention head of a transformer does, and which heads can go."""
__version__ = "0.1.0"
