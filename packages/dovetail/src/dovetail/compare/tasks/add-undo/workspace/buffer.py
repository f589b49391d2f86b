"""A text buffer."""


class Buffer:
    def __init__(self, text=""):
        self.text = text

    def insert(self, position, text):
        self.text = self.text[:position] + text + self.text[position:]

    def delete(self, position, count):
        self.text = self.text[:position] + self.text[position + count :]
