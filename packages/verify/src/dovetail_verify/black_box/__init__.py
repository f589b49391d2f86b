"""Checks that judge any server with any model, clever or not."""
