"""Names of the built-in plans, such as "auto", and the error for unknown ones; without TVM."""

from __future__ import annotations

from distir_ext.text.spelling import did_you_mean

SEARCHED = "auto"
"""The plan that is searched, for which a module need not say which parameters are weights."""

NAMED = ("tp", "fsdp", SEARCHED)
"""The plans, in the order in which messages list them."""


def check_name(plan: str) -> None:
    """Refuses other names.

    Raises:
        ValueError: There is no plan of this name.
    """
    if plan not in NAMED:
        raise ValueError(
            f"there is no plan {plan!r}; plans by name are {', '.join(map(repr, NAMED))}"
            f"{did_you_mean(plan, NAMED)}"
        )
