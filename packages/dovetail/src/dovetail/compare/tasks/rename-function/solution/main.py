import sys

from report.monthly import monthly
from report.yearly import yearly
from storage import load_rows


def main(path):
    print(len(load_rows(path)), len(monthly(path)), len(yearly(path)))


if __name__ == "__main__":
    main(sys.argv[1])
