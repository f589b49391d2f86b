"""The application: what lies between an agent harness and an inference engine."""

__all__: list[str] = []
