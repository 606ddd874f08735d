"""The inner loop, the outer loop, and loops of a user's own."""
