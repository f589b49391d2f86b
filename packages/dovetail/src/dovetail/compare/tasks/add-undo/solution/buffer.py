"""A text buffer."""


class Buffer:
    def __init__(self, text=""):
        self.text = text
        self._undo = []
        self._redo = []

    def insert(self, position, text):
        self._edit(self.text[:position] + text + self.text[position:])

    def delete(self, position, count):
        self._edit(self.text[:position] + self.text[position + count :])

    def undo(self):
        return self._restore(self._undo, self._redo)

    def redo(self):
        return self._restore(self._redo, self._undo)

    def _edit(self, text):
        if text != self.text:
            self._undo.append(self.text)
            self._redo.clear()
            self.text = text

    def _restore(self, source, target):
        if not source:
            return False
        target.append(self.text)
        self.text = source.pop()
        return True
