"""What a report must show for its run to pass."""
