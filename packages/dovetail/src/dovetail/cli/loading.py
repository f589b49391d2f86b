"""A model for the commands that need no engine, found and read as `dovetail serve` would."""

from pathlib import Path

from dovetail.models.loader import Model, load_model
from dovetail.models.weights import find_model
from dovetail.server.build import bundled_template


def find_and_load_model(
    model: str,
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    custom_template: Path | None = None,
) -> Model:
    """The model of a name or path. Raises `WeightsError` or `CatalogError` with what is wrong."""
    return load_model(
        find_model(model),
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        custom_template=custom_template or bundled_template(model),
    )
