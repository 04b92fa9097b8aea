"""What the ranks write: where it goes, and how it becomes lines."""
