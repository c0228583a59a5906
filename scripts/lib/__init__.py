"""What the commands in `scripts/` share. Standard library only."""
