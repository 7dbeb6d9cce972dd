"""What watches processes that tests start."""
