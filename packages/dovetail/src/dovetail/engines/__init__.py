"""Inference engines behind one interface, one module or package per engine."""
