"""Drawings."""


class Drawing:
    """A list of shapes."""

    def __init__(self):
        self.shapes = []

    def add(self, shape):
        self.shapes.append(shape)
        return self

    def area(self):
        return sum(shape.area() for shape in self.shapes)
