"""Shapes and their areas."""

import math

from drawing import Drawing

__all__ = ["Circle", "Drawing", "Rectangle"]


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
