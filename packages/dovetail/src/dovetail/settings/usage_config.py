"""The settings of usage accounting, prices and budgets."""

from dataclasses import dataclass

from dovetail.settings.definition import model_setting, setting


@dataclass(frozen=True, kw_only=True)
class UsageConfig:
    """The part of `Config` that concerns usage.

    Prices are per million tokens, in any currency. Budgets apply to each API key, in UTC days and
    months.
    """

    usage: bool = setting(True, "Record usage, for `dovetail usage` and for budgets.")
    usage_max_age: float = setting(400 * 86_400.0, "Seconds after which usage is deleted.")
    usage_max_sessions: int = setting(
        1000, "Maximum sessions per tenant and day whose usage is recorded individually."
    )
    price_prompt: float | None = model_setting(
        None, "Price of a million prompt tokens, in any currency. Costs are computed from it."
    )
    price_cached: float | None = model_setting(
        None, "Price of a million cached prompt tokens (default: that of other prompt tokens)."
    )
    price_output: float | None = model_setting(None, "Price of a million output tokens.")
    budget_tokens_per_day: int | None = setting(
        None, "Maximum tokens per UTC day and API key, counted as by --rate-limit-tokens."
    )
    budget_tokens_per_month: int | None = setting(None, "The same per UTC month and API key.")
    budget_cost_per_month: float | None = setting(
        None, "Maximum cost per UTC month and API key, at the prices of --price-prompt and others."
    )
