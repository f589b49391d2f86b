"""The contract of agent harnesses, and a suite that judges any server by it."""
