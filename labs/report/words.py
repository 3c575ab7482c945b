"""What a page says itself, in English and Chinese, and the words of the field that it explains.

Terms of the Chinese texts are those of README.zh-CN.md and of the exercises. Names of columns, metrics and settings
stay as they are in code.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs.errors import one_of

LANGUAGES = ("en", "zh")

#: key -> (English, Chinese).
UI = {
    "skip": ("Skip to the content", "跳到正文"),
    "contents": ("Contents", "目录"),
    "command": ("command", "命令"),
    "run": ("Run", "运行"),
    "seed": ("seed", "种子"),
    "seeds": ("seeds", "种子"),
    "kind_run": ("Report of a run", "运行报告"),
    "kind_diagnosis": ("Diagnosis", "诊断"),
    "kind_comparison": ("Comparison of two runs", "两次运行的比较"),
    "question": ("The question", "问题"),
    "conclusion": ("What was found", "结论"),
    "what_ran": ("What was run", "运行了什么"),
    "what_ran_text": (
        "This line gives the same bytes again on the same machine with the same packages.",
        "在同一台机器、同样的软件包下，这一行会给出同样的字节。",
    ),
    "settings": ("Settings", "设置"),
    "settings_all": ("Every setting; a changed one is marked with the default beside it.", "全部设置；改过的标出默认值。"),
    "setting": ("setting", "设置"),
    "value_head": ("value", "值"),
    "meaning": ("meaning", "含义"),
    "default": ("default", "默认"),
    "changed": ("changed", "已改"),
    "none": ("none", "无"),
    "numbers": ("The numbers", "数字"),
    "headline": ("The numbers that matter", "主要数字"),
    "headline_seeds": (
        "The numbers that matter: mean over the seeds and 95 % t interval",
        "主要数字：各种子的均值与 95 % t 区间",
    ),
    "number": ("number", "数字"),
    "unit": ("unit", "单位"),
    "mean": ("mean", "均值"),
    "interval": ("95 % interval", "95 % 区间"),
    "no_interval": ("one seed, none", "只有一个种子，无"),
    "along": ("Along the run", "运行过程中"),
    "along_text": (
        "Every number of every row, as first, middle and last row, and its range. All rows are in metrics.jsonl.",
        "每个数字在第一行、中间行和最后一行的值，以及范围。全部行在 metrics.jsonl 里。",
    ),
    "along_seeds": (
        "The same, each number the mean over the seeds of its row.",
        "同上，每个数字是该行各种子的均值。",
    ),
    "first": ("first", "第一行"),
    "middle": ("middle", "中间行"),
    "last": ("last", "最后一行"),
    "lowest": ("lowest", "最小"),
    "highest": ("highest", "最大"),
    "rows": ("rows", "行"),
    "per_seed": ("Every seed", "每个种子"),
    "figures": ("Figures", "图"),
    "figure_left_out": ("The figure {name} is left out: the page would be too large.", "图 {name} 未放入：页面会过大。"),
    "replay": ("Replay", "回放"),
    "replay_text": (
        "Episodes of training, computed again from the settings and the seed. One group of an update stands together, "
        "since a trajectory is judged against its group. The weight is the one of the first pass over the batch: "
        "minus the derivative of the loss with respect to the log-probability of the token.",
        "训练中的回合，由设置和种子重新算出。同一次更新的一个组放在一起，因为轨迹只和同组比较。"
        "权重取第一遍经过该批时的值：损失对该 token 对数概率的导数的相反数。",
    ),
    "update_at": ("Update {n} of {all}", "第 {n} 次更新，共 {all} 次"),
    "held_out_now": ("Held-out episodes after training", "训练后的留出回合"),
    "held_out_text": (
        "They are not in any loss: masks, advantage and weight do not exist for them.",
        "它们不进入任何损失：没有掩码、优势和权重。",
    ),
    "task": ("task", "任务"),
    "episode": ("episode", "回合"),
    "step": ("step", "步"),
    "stage": ("stage", "阶段"),
    "action": ("action", "动作"),
    "probability": ("probability", "概率"),
    "probabilities": ("Action probabilities at this stage", "此阶段的动作概率"),
    "sampled": ("sampled", "采样到"),
    "log_probability": ("log-probability", "对数概率"),
    "reply": ("The tool replies", "工具回复"),
    "tokens": ("Tokens of this step", "这一步的 token"),
    "token": ("token", "token"),
    "kind": ("kind", "种类"),
    "kind_action": ("action", "动作"),
    "kind_format": ("format", "格式"),
    "kind_reply": ("reply", "回复"),
    "weight": ("weight", "权重"),
    "version": ("policy version", "策略版本"),
    "end": ("end", "结束"),
    "previous_step": ("Previous step", "上一步"),
    "next_step": ("Next step", "下一步"),
    "pipeline": ("Pipeline", "流水线"),
    "pipeline_text": (
        "Who did what when, in simulated seconds. Colour is the lag; a hollow bar was thrown away.",
        "谁在何时做了什么，单位为模拟秒。颜色表示滞后；空心条表示被丢弃。",
    ),
    "pipeline_part": (
        "The first {shown} of {all} trajectories are drawn.",
        "画出前 {shown} 条轨迹，共 {all} 条。",
    ),
    "trajectory": ("trajectory", "轨迹"),
    "trajectories": ("Trajectories", "轨迹"),
    "trainer": ("trainer", "训练器"),
    "worker": ("worker", "worker"),
    "time": ("time (simulated s)", "时间（模拟秒）"),
    "start": ("start", "开始"),
    "finished": ("end", "结束"),
    "ingested": ("leaves the queue", "离开队列"),
    "trained": ("trained until", "训练到"),
    "waited": ("waited", "等待"),
    "lag": ("lag", "滞后"),
    "status": ("status", "状态"),
    "update": ("update", "更新"),
    "training_step": ("training step", "训练步"),
    "accepted": ("accepted", "接受"),
    "glossary": ("Glossary", "词汇表"),
    "glossary_text": ("Every number and word used on this page.", "本页用到的每个数字和词。"),
    "formula": ("formula", "公式"),
    "range": ("range", "范围"),
    "healthy": ("healthy", "健康范围"),
    "scope": ("over", "范围对象"),
    "next": ("Next", "接下来"),
    "next_text": ("Worth typing next.", "值得接着输入的命令。"),
    "stamp": ("Stamp", "运行信息"),
    "stamp_text": ("Where this came from. Only this part may differ from one run to the next.", "来源。只有这一部分会随每次运行而不同。"),
    "no_stamp": ("The run was not stored, so there is no stamp.", "这次运行没有存储，因此没有运行信息。"),
    "field": ("field", "字段"),
    "findings": ("Findings", "发现"),
    "no_findings": ("No finding.", "没有发现。"),
    "finding": ("finding", "发现"),
    "where": ("where", "位置"),
    "share": ("share", "占比"),
    "why": ("why it matters", "为何要紧"),
    "advice": ("what to try", "可以尝试"),
    "sure": ("how sure", "把握"),
    "certain": ("certain", "确定"),
    "likely": ("likely", "很可能"),
    "possible": ("possible", "可能"),
    "numbers_of": ("Numbers of this finding", "该发现中的数字"),
    "unchecked": ("What could not be checked", "无法检查的内容"),
    "unchecked_none": ("Every check could run.", "每项检查都能运行。"),
    "check": ("check", "检查"),
    "unlock": ("what to log", "需要记录什么"),
    "ran": ("Checks that ran and found nothing", "已运行且没有发现的检查"),
    "notes": ("What was assumed", "作了哪些假定"),
    "sources": ("What was read", "读取了什么"),
    "verdict": ("Verdict", "结论"),
    "difference": ("Difference", "差异"),
    "differing": ("Settings that differ", "不同的设置"),
    "same_settings": ("The settings are the same.", "设置相同。"),
    "folder": ("folder", "文件夹"),
    "experiment": ("experiment", "实验"),
}  # fmt: skip


def ui(key: str, lang: str, **values: object) -> str:
    """One of the page's own texts; raises `InputError` for a language that it does not have."""
    if lang not in LANGUAGES:
        raise one_of("language", lang, LANGUAGES)
    text = UI[key][LANGUAGES.index(lang)]
    return text.format(**values) if values else text


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of the field.

    Attributes:
        term, text: in English and Chinese.
        unit, formula: as for a metric; the formula needs no translation.
        healthy: the range in which a run is usually fine, in both languages.
        pattern: regular expressions by which running text is known to mean it, in both languages; "" never.
    """

    term: tuple[str, str]
    text: tuple[str, str]
    unit: str = "1"
    formula: str = ""
    healthy: tuple[str, str] = ("", "")
    pattern: tuple[str, str] = ("", "")


def _simple(word: str, chinese: str, plural: str = "s") -> tuple[str, str]:
    return (rf"\b{word}(?:{plural})?\b" if word else "", chinese)


WORDS = {
    "score": Word(
        term=("score", "分数"),
        unit="reward",
        formula="verifier(task, submitted answer) - costs of the actions",
        text=(
            "What the verifier gives a whole trajectory at its end, before any KL or shaping: 1 for the right answer, else 0.",
            "验证器在轨迹结束时给整条轨迹的数，尚未扣 KL、未经整形：答对为 1，否则为 0。",
        ),
        pattern=_simple("score", "分数"),
    ),
    "reward": Word(
        term=("reward", "奖励"),
        unit="reward",
        formula="token_level_rewards[t] = token_level_scores[t] - beta KL[t]",
        text=(
            "What one token earns. The score stands on the last token of the policy; every other token has 0 unless KL is charged.",
            "一个 token 挣得的数。分数放在策略的最后一个 token 上；若不扣 KL，其余 token 为 0。",
        ),
        pattern=_simple("reward", "奖励"),
    ),
    "return": Word(
        term=("return", "回报"),
        unit="reward",
        formula="G[t] = sum over k >= t of gamma^(k-t) reward[k]",
        text=(
            "What is still to come from a token on; the target of the critic where there is one.",
            "从某个 token 起往后还会得到的总和；有 critic 时是它的目标。",
        ),
        pattern=(r"\breturns\b|\bthe return\b", "回报"),
    ),
    "value": Word(
        term=("value", "价值"),
        unit="reward",
        formula="V(s) = expected return from s",
        text=("What a critic expects from a state on, before it is known.", "critic 对某个状态之后回报的预期。"),
        pattern=(r"\bvalue function\b|\bcritic's values?\b", "价值网络|状态价值"),
    ),
    "advantage": Word(
        term=("advantage", "优势"),
        unit="1, or reward where it is not normalised",
        formula="A = (score - mean of the group) / std of the group, or return - value",
        healthy=("mean near 0 in each group", "每组均值接近 0"),
        text=(
            "By how much a trajectory or token did better than was to be expected; its sign says whether the action becomes likelier.",
            "轨迹或 token 比预期好多少；正负号决定动作变得更可能还是更不可能。",
        ),
        pattern=_simple("advantage", "优势"),
    ),
    "weight": Word(
        term=("weight in the loss", "损失中的权重"),
        unit="1",
        formula="loss_weights[t] = - d loss / d log_prob[t]",
        text=(
            "How hard one token pulls at the policy: the gradient is the sum of weight times the gradient of the log-probability.",
            "一个 token 对策略的拉力：梯度等于权重乘对数概率梯度之和。",
        ),
    ),
    "log_probability": Word(
        term=("log-probability", "对数概率"),
        unit="nat",
        formula="log pi(action | stage)",
        text=("Of the action that was sampled, under the policy that sampled it.", "采样到的动作在采样它的策略下的对数概率。"),
        pattern=(r"\blog-probabilit(?:y|ies)\b", "对数概率"),
    ),
    "attention_mask": Word(
        term=("attention_mask", "attention_mask"),
        formula="1 on every real token, 0 on padding",
        text=("What the policy reads; tool text is in it.", "策略读到的内容；包括工具文字。"),
        pattern=(r"\battention_mask\b", r"\battention_mask\b"),
    ),
    "response_mask": Word(
        term=("response_mask", "response_mask"),
        formula="1 on tokens that the policy chose and that no rule rejected",
        text=("Which tokens carry a loss.", "哪些 token 带有损失。"),
        pattern=(r"\bresponse_mask\b", r"\bresponse_mask\b"),
    ),
    "loss_mask": Word(
        term=("loss_mask", "loss_mask"),
        formula="1 on tokens that the policy chose",
        text=(
            "Which tokens count in denominators; rejection never changes it.",
            "哪些 token 计入分母；拒绝规则从不改动它。",
        ),
        pattern=(r"\bloss_mask\b", r"\bloss_mask\b"),
    ),
    "trajectory": Word(
        term=("trajectory", "轨迹"),
        unit="trajectory",
        formula="decisions and replies of one attempt at one task",
        text=("Also called rollout or episode.", "也叫 rollout 或回合。"),
        pattern=(r"\btrajector(?:y|ies)\b|\brollouts?\b|\bepisodes?\b", "轨迹|回合"),
    ),
    "group": Word(
        term=("group", "组"),
        unit="group",
        formula="all trajectories of one task in one update",
        text=(
            "Rewards are compared within it; a group of equal rewards teaches nothing.",
            "奖励只在组内比较；奖励全等的组什么也教不了。",
        ),
        pattern=_simple("group", "同组|组内|一个组"),
    ),
    "version": Word(
        term=("policy version", "策略版本"),
        unit="version",
        formula="number of updates the policy has seen",
        text=("Version 0 is the policy before training.", "版本 0 是训练前的策略。"),
        pattern=(r"\bpolicy versions?\b|\bversions?\b", "策略版本|版本"),
    ),
    "lag": Word(
        term=("lag", "滞后"),
        unit="version",
        formula="version when it is trained - version when it started",
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
        text=("How far one policy is from another; 0 only when they are the same.", "两个策略相距多远；只有相同时为 0。"),
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
        formula="a sum over every possible outcome, no sampling",
        text=("It has no interval, since nothing was drawn.", "没有区间，因为没有抽样。"),
        pattern=(r"\bexact(?:ly)?\b|\bby enumeration\b", "精确"),
    ),
    "held_out": Word(
        term=("held-out", "留出"),
        formula="tasks with operands that training never shows",
        text=("They tell learning from remembering.", "用来区分学会与记住。"),
        pattern=(r"\bheld[- ]out\b", "留出"),
    ),
    "interval": Word(
        term=("95 % interval", "95 % 区间"),
        formula="mean -+ t(n-1) s / sqrt(n) over seeds; Wilson's for a rate of n draws",
        text=(
            "It covers the true number in 95 of 100 repetitions; one seed has none.",
            "重复 100 次约有 95 次盖住真值；一个种子没有区间。",
        ),
        pattern=(r"\b95 % (?:\w+ )?interval\b|\bWilson interval\b|\bt interval\b", "95 % (?:t )?区间"),
    ),
    "seed": Word(
        term=("seed", "种子"),
        formula="start of the random generator",
        text=("The same seed and settings give the same bytes.", "同样的种子和设置给出同样的字节。"),
        pattern=_simple("seed", "种子"),
    ),
}  # fmt: skip
