"""Formulas and sentences of metrics in Chinese, by their English text: one that changes falls back to English.

A formula that is arithmetic alone needs no translation and is not here.
"""

TRANSLATED = {
    "number of the policy update": "第几次策略更新",
    "right / trajectories of the update": "做对的 / 该次更新的轨迹",
    "right / trajectories": "做对的 / 轨迹",
    "ended by an invalid action / trajectories": "以无效动作结束的 / 轨迹",
    "cut by the step limit / trajectories": "被步数上限截断的 / 轨迹",
    "decisions / trajectories": "决策数 / 轨迹数",
    "mean of the verifier's score, before shaping": "验证器分数的均值，整形之前",
    "How undecided the policy is; log(actions) when uniform, 0 when it always does the same.": (
        "策略有多犹豫：均匀时为 log(动作数)，总做同一件事时为 0。"
    ),
    "mean over (family, stage) of -sum p log p": "对每个（类别，阶段）取 -sum p log p，再求均值",
    "tasks of the update": "该次更新的任务数",
    "groups without a right trajectory": "没有一条轨迹做对的组",
    "groups without a wrong trajectory": "没有一条轨迹做错的组",
    "groups of equal rewards": "奖励全等的组",
    "groups of equal scores": "分数全等的组",
    "groups whose best score is not above 0": "最高分不大于 0 的组",
    "groups whose worst score is above 0": "最低分大于 0 的组",
    "They teach nothing: every advantage in them is 0.": "它们什么也教不了：组内每个优势都是 0。",
    "They teach nothing to an estimator that compares within the group.": "对组内比较的估计器来说，它们什么也教不了。",
    "probability of success of the policy that sampled, by enumeration": "采样所用策略的成功概率，经枚举得到",
    "What train_success_rate estimates; families equally likely, operands uniform.": (
        "train_success_rate 所估计的量；各类别等概率，操作数均匀分布。"
    ),
    "What train_success_rate estimates.": "train_success_rate 所估计的量。",
    "probability of success of the policy that sampled, by enumeration, on the training tasks": (
        "采样所用策略在训练任务上的成功概率，经枚举得到"
    ),
    "right / held-out episodes, after training": "做对的 / 留出回合，训练之后",
    "One draw: with 400 episodes its standard deviation is 0.009.": "只是一次抽样：400 个回合时标准差为 0.009。",
    "probability of success of the trained policy on the held-out tasks, by enumeration": (
        "训练后的策略在留出任务上的成功概率，经枚举得到"
    ),
    "What success_rate estimates; families equally likely, operands uniform.": (
        "success_rate 所估计的量；各类别等概率，操作数均匀分布。"
    ),
    "What success_rate estimates.": "success_rate 所估计的量。",
    "ended by an invalid action / held-out episodes": "以无效动作结束的 / 留出回合",
    "cut by the step limit / held-out episodes": "被步数上限截断的 / 留出回合",
    "decisions / held-out episodes": "决策数 / 留出回合数",
    "mean of the verifier's score, held out": "留出任务上验证器分数的均值",
    "its expected score, by enumeration": "其期望分数，经枚举得到",
    "rows of the update": "该次更新的行数",
    "norm of the first gradient of the update, before clipping": "该次更新第一个梯度的范数，裁剪之前",
    "Of loss and entropy terms together.": "损失项与熵项合在一起。",
    "mean over (family, stage) of KL(before, after the update)": "对每个（类别，阶段）取更新前后的 KL，再求均值",
    "How far the update moved the policy; no sampling error.": "这次更新把策略移动了多远；没有采样误差。",
    "asynchronous / synchronous accepted_per_simulated_second": "异步 / 同步的 accepted_per_simulated_second",
    "Above 1 the asynchronous schedule feeds the trainer faster, after paying for what it threw away.": (
        "大于 1 时，异步调度在付出丢弃的代价之后，仍更快地喂给训练器。"
    ),
    "simulated time until the last trajectory was trained or rejected": "直到最后一条轨迹被训练或拒绝的模拟时间",
    "accepted trajectories / simulated seconds": "接受的轨迹 / 模拟秒",
    "asynchronous trajectories that were trained": "异步调度中被训练的轨迹",
    "asynchronous trajectories with lag > max_policy_lag when the trainer was free": (
        "训练器空闲时滞后大于 max_policy_lag 的异步轨迹"
    ),
    "index of the training step": "训练步的序号",
    "simulated time at which the step started": "该步开始的模拟时间",
    "simulated time at which the step ended": "该步结束的模拟时间",
    "trajectories in the step": "该步的轨迹数",
    "policy version the step started from": "该步开始时的策略版本",
    "mean of version - start_version in the batch": "批内 version - start_version 的均值",
    "mean time in the queue in the batch": "批内在队列中的平均时间",
    "mean over tokens of old_log_prob - log_prob": "对 token 取 old_log_prob - log_prob 的均值",
    "Share of tokens whose ratio left the clip range on the side that stops the gradient.": (
        "比率从会停掉梯度的一侧离开裁剪区间的 token 占比。"
    ),
    "near 0": "接近 0",
    "near 1": "接近 1",
    "under 0.1": "小于 0.1",
    "under 0.3": "小于 0.3",
    "above 0.5": "大于 0.5",
}
