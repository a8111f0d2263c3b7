"""What every other room may use: errors, files, processes; of its modules two need torch."""
