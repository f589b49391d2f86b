"""Convert lines to numbers."""


def to_numbers(lines):
    numbers = []
    for line in lines:
        try:
            numbers.append(float(line))
        except ValueError:
            print("WARNING: not a number:", line)
    print(f"converted {len(numbers)} of {len(lines)} lines")
    return numbers
