"""What may be wrong with settings, files or engines: each says so in words for the operator."""

from dovetail.engines.registry import EngineSetupError
from dovetail.models.loader import CatalogError
from dovetail.models.weights import WeightsError
from dovetail_model import DovetailError

SETUP_FAULTS = (CatalogError, EngineSetupError, WeightsError, DovetailError, ValueError, OSError)
