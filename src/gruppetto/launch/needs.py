"""What a process of a run needs of each machine it runs on."""

from __future__ import annotations

from gruppetto.config import RunConfig
from gruppetto.launch.syncers import STANDBY, SYNCER

__all__ = ["COUNTED", "bundles_for"]

COUNTED = frozenset({"CPU", "GPU", "memory"})
"""What engines count by themselves; every other need is a label."""

GIB = 2**30


def bundles_for(config: RunConfig, name: str) -> list[dict[str, float]]:
    """For each node of the process ``name``: CPU and GPU, memory in bytes, and the labels of its group.

    >>> from gruppetto.config import load_run
    >>> config = load_run(overrides={"run.num_learners": 1})
    >>> bundles_for(config, "learner-0"), bundles_for(config, "syncer")
    ([{'CPU': 1.0}], [{'CPU': 1.0}])
    """
    if name in (SYNCER, STANDBY):
        launch = config.launch
        return [{"CPU": 1.0, **dict(launch.syncer_resources if name == SYNCER else launch.standby_resources)}]
    group = config.group_of(name)
    ranks = group.on_a_node
    whole = {"CPU": group.cpus * ranks, "GPU": group.gpus * ranks, "memory": group.memory_gib * GIB * ranks}
    whole.update(group.resources)
    return [{label: amount for label, amount in whole.items() if amount}] * group.nodes
