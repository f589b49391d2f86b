from storage.reader import load_rows

__all__ = ["load_rows"]
