import sys

from report.monthly import monthly
from report.yearly import yearly
from storage import fetch_data


def main(path):
    print(len(fetch_data(path)), len(monthly(path)), len(yearly(path)))


if __name__ == "__main__":
    main(sys.argv[1])
