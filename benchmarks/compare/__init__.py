"""Experiments with `dovetail compare` whose true effect is known."""
