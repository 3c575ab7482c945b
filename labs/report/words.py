"""The words of the field that a page explains, in English and Chinese."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of the field.

    Attributes:
        term, text: in English and Chinese.
        unit: as for a metric, or in both languages.
        formula: in English and Chinese, or once where it is arithmetic.
        healthy: the range in which a run is usually fine, in both languages.
        see: other words of the table that the reader needs.
        pattern: regular expressions by which running text is known to mean it, in both languages; "" never.
    """

    term: tuple[str, str]
    text: tuple[str, str]
    unit: str | tuple[str, str] = "1"
    formula: str | tuple[str, str] = ""
    see: tuple[str, ...] = ()
    healthy: tuple[str, str] = ("", "")
    pattern: tuple[str, str] = ("", "")


def _simple(word: str, chinese: str, plural: str = "s") -> tuple[str, str]:
    return (rf"\b{word}(?:{plural})?\b" if word else "", chinese)


WORDS = {
    "score": Word(
        term=("score", "分数"),
        unit="reward",
        formula=("verifier(task, submitted answer) - costs of the actions", "验证器(任务, 提交的答案) - 各动作的代价"),
        text=(
            "What the verifier gives a whole trajectory at its end, before any KL or shaping: 1 for the right "
            "answer, else 0.",
            "验证器在轨迹结束时给整条轨迹的数，尚未扣 KL、未经整形：答对为 1，否则为 0。",
        ),
        pattern=_simple("score", "分数"),
    ),
    "reward": Word(
        term=("reward", "奖励"),
        unit="reward",
        formula="token_level_rewards[t] = token_level_scores[t] - beta KL[t]",
        see=("score",),
        text=(
            "What one token earns. The score stands on the last token of the policy; every other token has 0 "
            "unless KL is charged.",
            "一个 token 挣得的数。分数放在策略的最后一个 token 上；若不扣 KL，其余 token 为 0。",
        ),
        pattern=_simple("reward", "奖励"),
    ),
    "return": Word(
        term=("return", "回报"),
        unit="reward",
        formula="G[t] = sum over k >= t of gamma^(k-t) reward[k]",
        see=("reward",),
        text=(
            "What is still to come from a token on; the target of the critic where there is one.",
            "从某个 token 起往后还会得到的总和；有 critic 时是它的目标。",
        ),
        pattern=(r"\breturns\b|\bthe return\b", "回报"),
    ),
    "value": Word(
        term=("value", "价值"),
        unit="reward",
        formula=("V(s) = expected return from s", "V(s) = 从 s 起的期望回报"),
        see=("return",),
        text=("What a critic expects from a state on, before it is known.", "critic 对某个状态之后回报的预期。"),
        pattern=(r"\bvalue function\b|\bcritic's values?\b", "价值网络|状态价值"),
    ),
    "advantage": Word(
        term=("advantage", "优势"),
        unit=("1, or reward where it is not normalised", "1；未归一化时为 reward"),
        formula=(
            "A = (score - mean of the group) / std of the group, or return - value",
            "A = (分数 - 组均值) / 组标准差，或 回报 - 价值",
        ),
        healthy=("mean near 0 in each group", "每组均值接近 0"),
        see=("score", "return", "value", "group"),
        text=(
            "By how much a trajectory or token did better than was to be expected; its sign says whether the "
            "action becomes likelier.",
            "轨迹或 token 比预期好多少；正负号决定动作变得更可能还是更不可能。",
        ),
        pattern=_simple("advantage", "优势"),
    ),
    "weight": Word(
        term=("weight in the loss", "损失中的权重"),
        unit="1",
        formula="loss_weights[t] = - d loss / d log_prob[t]",
        see=("advantage",),
        text=(
            "How hard one token pulls at the policy: the gradient is the sum of weight times the gradient of the "
            "log-probability.",
            "一个 token 对策略的拉力：梯度等于权重乘对数概率梯度之和。",
        ),
    ),
    "log_probability": Word(
        term=("log-probability", "对数概率"),
        unit="nat",
        formula="log pi(action | stage)",
        text=(
            "Of the action that was sampled, under the policy that sampled it.",
            "采样到的动作在采样它的策略下的对数概率。",
        ),
        pattern=(r"\blog-probabilit(?:y|ies)\b", "对数概率"),
    ),
    "attention_mask": Word(
        term=("attention_mask", "attention_mask"),
        formula=("1 on every real token, 0 on padding", "每个真实 token 处为 1，填充处为 0"),
        text=("What the policy reads; tool text is in it.", "策略读到的内容；包括工具文字。"),
        pattern=(r"\battention_mask\b", r"\battention_mask\b"),
    ),
    "response_mask": Word(
        term=("response_mask", "response_mask"),
        formula=(
            "1 on tokens that the policy chose and that no rule rejected",
            "策略所选且未被任何规则拒绝的 token 处为 1",
        ),
        text=("Which tokens carry a loss.", "哪些 token 带有损失。"),
        pattern=(r"\bresponse_mask\b", r"\bresponse_mask\b"),
    ),
    "loss_mask": Word(
        term=("loss_mask", "loss_mask"),
        formula=("1 on tokens that the policy chose", "策略所选的 token 处为 1"),
        text=(
            "Which tokens count in denominators; rejection never changes it.",
            "哪些 token 计入分母；拒绝规则从不改动它。",
        ),
        pattern=(r"\bloss_mask\b", r"\bloss_mask\b"),
    ),
    "trajectory": Word(
        term=("trajectory", "轨迹"),
        unit="trajectory",
        formula=("decisions and replies of one attempt at one task", "对一个任务的一次尝试中的全部决策与回复"),
        text=("Also called rollout or episode.", "也叫 rollout 或回合。"),
        pattern=(r"\btrajector(?:y|ies)\b|\brollouts?\b|\bepisodes?\b", "轨迹|回合"),
    ),
    "group": Word(
        term=("group", "组"),
        unit="group",
        formula=("all trajectories of one task in one update", "一次更新中同一任务的全部轨迹"),
        text=(
            "Rewards are compared within it; a group of equal rewards teaches nothing.",
            "奖励只在组内比较；奖励全等的组什么也教不了。",
        ),
        pattern=_simple("group", "同组|组内|一个组"),
    ),
    "version": Word(
        term=("policy version", "策略版本"),
        unit="version",
        formula=("number of updates the policy has seen", "该策略经历的更新次数"),
        text=("Version 0 is the policy before training.", "版本 0 是训练前的策略。"),
        pattern=(r"\bpolicy versions?\b|\bversions?\b", "策略版本|版本"),
    ),
    "lag": Word(
        term=("lag", "滞后"),
        unit="version",
        formula=("version when it is trained - version when it started", "被训练时的版本 - 开始时的版本"),
        healthy=("0 on policy; up to a few with a correction", "同策略为 0；有修正时可到几"),
        text=("How old a trajectory is. Above the bound it is thrown away.", "轨迹有多旧。超过上限就被丢弃。"),
        pattern=_simple("lag", "滞后"),
    ),
    "entropy": Word(
        term=("entropy", "熵"),
        unit="nat",
        formula="-sum over actions of p log p",
        healthy=("falls from log(actions), slowly", "从 log(动作数) 缓慢下降"),
        text=("How undecided the policy is; 0 when it always does the same.", "策略有多犹豫；总做同一件事时为 0。"),
        pattern=_simple("entropy", "熵", ""),
    ),
    "kl": Word(
        term=("KL divergence", "KL 散度"),
        unit="nat",
        formula="sum over actions of p log(p / q)",
        text=(
            "How far one policy is from another; 0 only when they are the same.",
            "两个策略相距多远；只有相同时为 0。",
        ),
        pattern=(r"\bKL\b", r"\bKL\b"),
    ),
    "ratio": Word(
        term=("importance ratio", "重要性比率"),
        formula="pi_new(token) / pi_old(token)",
        healthy=("near 1", "接近 1"),
        text=("How much likelier a token has become since it was sampled.", "token 自采样以来变得多么更可能。"),
        pattern=(r"\bimportance (?:ratio|weight)s?\b", "重要性比率|重要性权重"),
    ),
    "exact": Word(
        term=("exact", "精确"),
        formula=("a sum over every possible outcome, no sampling", "对每种可能结果求和，不抽样"),
        text=("It has no interval, since nothing was drawn.", "没有区间，因为没有抽样。"),
        pattern=(r"\bexact(?:ly)?\b|\bby enumeration\b", "精确"),
    ),
    "held_out": Word(
        term=("held-out", "留出"),
        formula=("tasks with operands that training never shows", "操作数在训练中从未出现的任务"),
        text=("They tell learning from remembering.", "用来区分学会与记住。"),
        pattern=(r"\bheld[- ]out\b", "留出"),
    ),
    "interval": Word(
        term=("95 % interval", "95 % 区间"),
        formula=(
            "mean -+ t(n-1) s / sqrt(n) over seeds; Wilson's for a rate of n draws",
            "各种子上 mean -+ t(n-1) s / sqrt(n)；n 次抽样的比率用 Wilson 区间",
        ),
        text=(
            "It covers the true number in 95 of 100 repetitions; one seed has none.",
            "重复 100 次约有 95 次盖住真值；一个种子没有区间。",
        ),
        pattern=(r"\b95 % (?:\w+ )?interval\b|\bWilson interval\b|\bt interval\b", "95 % (?:t )?区间"),
    ),
    "seed": Word(
        term=("seed", "种子"),
        formula=("start of the random generator", "随机数生成器的起点"),
        text=("The same seed and settings give the same bytes.", "同样的种子和设置给出同样的字节。"),
        pattern=_simple("seed", "种子"),
    ),
}
