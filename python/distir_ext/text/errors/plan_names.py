"""Names of the built-in plans, such as "auto", and the error for unknown ones; without TVM."""

from __future__ import annotations

from distir_ext.text.errors.spelling import did_you_mean

SEARCHED = "auto"
"""The plan that is searched, for which a module need not say which parameters are weights."""

NAMED = ("tp", "fsdp", SEARCHED)
"""The plans, in the order in which messages list them."""

ELSEWHERE = {
    "hf": "is what a model of transformers brings along, which interop.torch.partition reads",
    "search": f"is called {SEARCHED!r} for modules",
}
"""Plans of ``interop.torch.partition`` that are no plans of modules, and why not."""


def check_name(plan: str) -> None:
    """Raises ValueError unless a plan has this name.

    Raises:
        ValueError: There is no plan of this name.
    """
    if plan in ELSEWHERE:
        raise ValueError(
            f"the plan {plan!r} {ELSEWHERE[plan]}; plans of a module by name are "
            f"{', '.join(map(repr, NAMED))}"
        )
    if plan not in NAMED:
        raise ValueError(
            f"there is no plan {plan!r}; plans by name are {', '.join(map(repr, NAMED))}"
            f"{did_you_mean(plan, NAMED)}"
        )
