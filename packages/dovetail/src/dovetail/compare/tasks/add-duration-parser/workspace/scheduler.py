"""Read jobs and their intervals in seconds."""

import json


def read_jobs(path):
    with open(path, encoding="utf-8") as file:
        jobs = json.load(file)
    return {job["name"]: int(job["every"]) for job in jobs}
