"""What may be wrong with settings, files or engines: each says so in words for the operator."""

from dovetail.engines.registry import EngineSetupError
from dovetail.models.loader import ModelLoadError
from dovetail.models.weights import ModelUnavailableError
from dovetail_model import DovetailError

SETUP_ERRORS = (
    ModelLoadError,
    EngineSetupError,
    ModelUnavailableError,
    DovetailError,
    ValueError,
    OSError,
)
