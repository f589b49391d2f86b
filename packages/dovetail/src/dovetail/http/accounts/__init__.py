"""What is known of each request, and who is told of it."""
