"""Shapes and their areas."""

import math


class Circle:
    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return math.pi * self.radius**2


class Rectangle:
    def __init__(self, width, height):
        self.width, self.height = width, height

    def area(self):
        return self.width * self.height


class Drawing:
    """A list of shapes."""

    def __init__(self):
        self.shapes = []

    def add(self, shape):
        self.shapes.append(shape)
        return self

    def area(self):
        return sum(shape.area() for shape in self.shapes)
