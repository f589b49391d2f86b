"""What generates: engines behind one small seam, each in a module of its own."""
