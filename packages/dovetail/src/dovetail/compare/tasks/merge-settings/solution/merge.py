"""Merge settings."""


def merge_settings(base, override):
    merged = {key: copy(value) for key, value in base.items()}
    for key, value in override.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge_settings(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = copy(value)
    return merged


def copy(value):
    if isinstance(value, dict):
        return {key: copy(one) for key, one in value.items()}
    return list(value) if isinstance(value, list) else value
