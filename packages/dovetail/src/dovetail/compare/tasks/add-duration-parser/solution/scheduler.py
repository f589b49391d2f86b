"""Read jobs and their intervals in seconds."""

import json

from duration import parse_duration


def read_jobs(path):
    with open(path, encoding="utf-8") as file:
        jobs = json.load(file)
    return {job["name"]: parse_duration(job["every"]) for job in jobs}
