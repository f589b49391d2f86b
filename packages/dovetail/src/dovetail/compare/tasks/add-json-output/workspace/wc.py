"""Count lines, words and characters of files."""

import argparse


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    for name in options.files:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        print(len(text.splitlines()), len(text.split()), len(text), name)


if __name__ == "__main__":
    main()
