"""Discrete-event model of rollout workers, a queue and a trainer that change the policy while work is under way.

- `rules`: what a system does, as one frozen configuration; synchronous and asynchronous are two values of it;
- `model`: the SimPy model, `simulate(rules, workload) -> Run`;
- `buffer`, `records`: the queue between workers and trainer, and what is kept of every trajectory;
- `accounting`: the finished run, its sums, and the conservation laws that every run is checked against;
- `systems/`, `catalogue`: published schedulers as data, every rule with its evidence;
- `closed_forms`, `predictions`: theory, and what it says beside a run;
- `measures`, `report`, `told`: a run in numbers, under the frameworks' names, and in words; `chrome`: for Perfetto.

It knows no learner: only the interface `Learner` of `records`. Importing this package imports no simpy; importing
`labs.pipeline.model` does.
"""
