"""Every estimator and loss of the lab, inside verl 0.9.1, as `lab_<name>`.

`VERL_USE_EXTERNAL_MODULES=labs.interop.verl` makes `import verl` import this module, which registers all entries; then
`algorithm.adv_estimator=lab_rloo` and `actor_rollout_ref.actor.policy_loss.loss_mode=lab_vanilla` select them. The
functions are the lab's own, unmodified: verl calls an estimator by keyword and a loss by position, with exactly the
names the entries use.

The prefix is needed: verl's `register_adv_est` refuses a name that is taken, and its `register_policy_loss` silently
replaces one. What verl passes depends on its dispatcher: an entry that needs a column it never passes (`values`,
say, outside plain `gae`) is registered too and says so when called.
"""

from __future__ import annotations

from labs.errors import InputError
from labs.registry import estimators, losses

PREFIX = "lab_"


def register() -> list[str]:
    """Register every entry in verl and return the names, sorted.

    Calling it twice changes nothing.

    Raises:
        InputError: verl cannot be imported here.
    """
    try:
        from verl.trainer.ppo import core_algos
    except ImportError as error:
        raise InputError(f"labs.interop.verl needs verl 0.9.1 in this environment: {error}") from None
    names = []
    for name in estimators.sound():
        core_algos.register_adv_est(PREFIX + name)(estimators[name])
        names.append(PREFIX + name)
    for name in losses.sound():
        core_algos.register_policy_loss(PREFIX + name)(losses[name])
        names.append(PREFIX + name)
    return sorted(names)


NAMES = register()
