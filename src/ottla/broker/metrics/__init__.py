"""What the broker counts about itself, and what is read off its state."""
