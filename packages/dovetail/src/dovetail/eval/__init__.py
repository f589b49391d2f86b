"""Run agent tasks on an endpoint, with and without Dovetail, and compare the results."""
