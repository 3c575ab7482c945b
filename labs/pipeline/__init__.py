"""Discrete-event model of rollout workers, a queue and a trainer that change the policy while work is under way.

- `rules`: what a system does, as one frozen configuration; synchronous and asynchronous are two values of it;
- `model`: the SimPy model, `simulate(rules, workload) -> Run`;
- `buffer`, `records`: the queue between workers and trainer, and what is kept of every trajectory;
- `accounting`: the finished run, its sums, and the conservation laws that every run is checked against.

It knows no learner: only the interface `Learner` of `records`. Importing this package imports no simpy; importing
`labs.pipeline.model` does.
"""
