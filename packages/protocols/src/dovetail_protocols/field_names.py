"""The names of fields in errors: the code between the codecs uses those of Chat Completions."""

from collections.abc import Mapping

from dovetail_model import DovetailError


def rename_field(error: DovetailError, names: Mapping[str, str]) -> DovetailError:
    """Return the error with the name that the API has for its field."""
    name = names.get(error.param or "")
    if name is None:
        return error
    message = error.message.replace(f"`{error.param}`", f"`{name}`")
    if message.startswith(f"{error.param}:"):
        message = name + message.removeprefix(error.param or "")
    renamed = type(error)(message, param=name, retry_after=error.retry_after)
    renamed.reason = error.reason
    return renamed
