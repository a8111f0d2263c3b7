"""What heads read and pass on."""
