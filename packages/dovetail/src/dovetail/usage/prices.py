"""Prices of a model's tokens, from which the cost of a request is computed."""

from dataclasses import dataclass

from dovetail_model import Usage

NANOS = 1_000_000_000  # costs are integers in billionths, so that sums do not depend on the order
_NANOS_PER_TOKEN = NANOS // 1_000_000  # at a price of 1 per million tokens


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens, in the operator's currency.

    cached: The price of prompt tokens that the engine had cached; None: that of other tokens.
    """

    prompt: float = 0.0
    cached: float | None = None
    output: float = 0.0

    def cost_nanos(self, usage: Usage) -> int:
        """Return the cost of a response in billionths of the currency."""
        cached_price = self.prompt if self.cached is None else self.cached
        cached = min(usage.cached_tokens, usage.input_tokens)
        cost = (
            (usage.input_tokens - cached) * self.prompt
            + cached * cached_price
            + usage.output_tokens * self.output
        )
        return round(cost * _NANOS_PER_TOKEN)


NO_PRICES = Prices()
