"""stable-baselines3's PPO learns the default environment through the Gymnasium adapter.

Settings, found by a short search: 16 environments, 32 steps of each a rollout (512 decisions), minibatches of 256, 10
epochs, learning rate 1e-3, entropy coefficient 0.01; the rest are PPO's defaults. Training stops at 19,200 episodes,
what the lab's own learner uses; the success is exact, by enumeration of the trained network's table.
"""

import pytest

EPISODES, WANTED = 19_200, 0.95


@pytest.mark.nightly
def test_ppo_reaches_the_exact_success_within_the_lab_s_episodes() -> None:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    from labs.enumeration import outcome_probabilities, task_classes
    from labs.interop.gymnasium import LabEnv, one_hot, probabilities
    from labs.registry import environments

    class Stop(BaseCallback):
        """Ends training at the budget of episodes."""

        seen = 0

        def _on_step(self) -> bool:
            self.seen += int(self.locals["dones"].sum())
            return self.seen < EPISODES

    torch.set_num_threads(1)
    environment = environments["arithmetic"]
    exact = []
    for seed in (0, 1):
        envs = make_vec_env(lambda: one_hot(LabEnv("arithmetic")), n_envs=16, seed=seed)
        model = PPO("MlpPolicy", envs, n_steps=32, batch_size=256, n_epochs=10, learning_rate=1e-3, ent_coef=0.01,
                    seed=seed, device="cpu")  # fmt: skip
        stop = Stop()
        model.learn(10**9, callback=stop)
        assert EPISODES <= stop.seen < EPISODES + 16

        def acting(vectors, policy=model.policy):
            with torch.no_grad():
                return policy.get_distribution(torch.from_numpy(vectors)).distribution.probs.numpy()

        table = probabilities(environment, acting)
        classes = task_classes(environment, environment.evaluation_operands)
        exact.append(outcome_probabilities(environment, table, classes, environment.max_steps).success)
    print(f"stable-baselines3 PPO: exact success {exact} after {EPISODES} episodes, wanted {WANTED}")
    assert min(exact) >= WANTED
