"""Print a greeting."""

from greetings import greet

if __name__ == "__main__":
    print(greet("Ada Lovelace"))
