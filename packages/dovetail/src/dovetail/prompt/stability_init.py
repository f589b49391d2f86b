"""What must not reach the token prefix, and who changed it if it did."""

from dovetail.prompt.clean import NormalizationOptions
from dovetail.prompt.normalization import PromptNormalizer
from dovetail_model import Request


def normalize_prompt(request: Request, options: NormalizationOptions | None = None) -> Request:
    """One request, nothing remembered. A server keeps a `Stabilizer`."""
    return PromptNormalizer(options).normalize(request)
