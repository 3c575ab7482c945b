"""One small file of every format that `labs/dumps/` reads, written into a folder; the rows are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch


def jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def v1_rows(step: int = 12, prompts: int = 3, n: int = 4) -> list[dict[str, Any]]:
    """verl V1: groups with scores 1, 0, 1, 0, a prompt id with an underscore of its own."""
    return [
        {"input": f"user\n{p}+2?", "output": f"The sum is {p + 2 * (i % 2)}.", "gts": str(p), "score": 1.0 - i % 2,
         "step": step, "uid": f"id_{p}_{i}_0"}
        for p in range(prompts) for i in range(n)
    ]  # fmt: skip


def legacy_rows(step: int = 12) -> list[dict[str, Any]]:
    return [
        {"input": f"user\n{p}+2?", "output": "42", "gts": "42", "score": 0.75 - 0.5 * (i % 2), "step": step,
         "acc": 1.0 - i % 2, "pred": "42", "overlong": i == 3, "overlong_reward": -0.25, "request_id": f"b{p}{i}"}
        for p in range(2) for i in range(4)
    ]  # fmt: skip


def batch_arrays() -> dict[str, np.ndarray]:
    """A batch under verl's names: two groups of two rows, one tool gap."""
    mask = np.array([[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 0]])
    seen = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]])
    adv = np.array([0.7071, -0.7071, 0.7071, -0.7071])[:, None] * mask
    return {
        "responses": np.array([[5, 6, 9, 2], [5, 2, 0, 0], [7, 9, 9, 2], [5, 6, 2, 0]]),
        "attention_mask": seen, "response_mask": mask, "loss_mask": mask, "advantages": adv,
        "old_log_probs": -0.5 * mask.astype(float), "rollout_log_probs": -0.51 * mask.astype(float),
        "rm_scores": np.eye(4)[[3, 1, 3, 2]] * np.array([[1.0], [0.0], [1.0], [0.0]]),
        "uid": np.array(["a", "a", "b", "b"]),
    }  # fmt: skip


def trl_table(path: Path, n: int = 4, weights: tuple[float, float] = (1.0, 0.2), eps: float = 1e-4) -> Path:
    """TRL's completions: three prompts, two reward functions with weights, advantages as TRL computes them."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    rng = np.random.default_rng(0)
    parts = rng.integers(0, 2, (3, n, 2)).astype(float)
    parts[:, 0], parts[:, 1] = (1.0, 0.0), (0.0, 1.0)
    total = parts @ np.array(weights)
    adv = (total - total.mean(1, keepdims=True)) / (total.std(1, ddof=1, keepdims=True) + eps)
    flat = parts.reshape(-1, 2)
    columns = {
        "step": [50] * (3 * n), "prompt": [f"{p}+2?" for p in range(3) for _ in range(n)],
        "completion": ["42"] * (3 * n),
        "accuracy_reward": flat[:, 0], "format_reward": flat[:, 1], "advantage": adv.ravel(),
    }  # fmt: skip
    write_table(pa.table(columns), path)
    return path


def npz(path: Path) -> Path:
    np.savez(path, **batch_arrays())
    return path


def pt(path: Path) -> Path:
    arrays = batch_arrays()
    uid = arrays.pop("uid").tolist()
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    torch.save({"batch": tensors, "non_tensor_batch": {"uid": uid}, "meta_info": {"global_steps": 3}}, path)
    return path


def tensors(path: Path) -> Path:
    from safetensors.torch import save_file

    arrays = batch_arrays()
    uid = arrays.pop("uid").tolist()
    half = {n: torch.tensor(a).to(torch.bfloat16 if a.dtype == float else torch.int64) for n, a in arrays.items()}
    save_file(half, path, metadata={"uid": json.dumps(uid), "global_step": "3"})
    return path


def slime(path: Path) -> Path:
    sample = {
        "group_index": 0, "index": 0, "prompt": "17+25?", "tokens": [1, 2, 5, 9, 2], "response_length": 3,
        "label": "42",
        "response": "42", "reward": 1.0, "loss_mask": [1, 0, 1], "weight_versions": ["5", "6"],
        "rollout_log_probs": [-0.1, 0.0, -0.2], "remove_sample": False, "status": "completed",
    }  # fmt: skip
    other = {**sample, "reward": {"score": 0.0, "format": 1.0}, "loss_mask": None, "remove_sample": True, "index": 1}
    torch.save({"rollout_id": 5, "samples": [sample, {**other, "status": "truncated"}]}, path)
    return path


def lab_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"group_size": 16, "updates": 2}')
    jsonl(folder / "metrics.jsonl", [{"update": i, "train_success_rate": 0.1 * i, "groups": 12} for i in (1, 2)])
    steps = [{"action": "read", "log_probability": -0.1, "policy_version": 2}]
    jsonl(folder / "trajectories.jsonl", [{"episode": 0, "steps": steps, "end": "timeout", "reward": 0.0}])
    (folder / "result.json").write_text('{"experiment": "agent", "headline": {}}')
    return folder


def prime(path: Path) -> Path:
    row = {
        "schema_version": 1, "step": 4, "rank": 0, "env_name": "add", "token_ids": [9, 8, 7],
        "loss_mask": [False, True, True], "advantages": [0.0, 0.5, 0.5], "inference_logprobs": [0.0, -0.69, None],
        "trainer_logprobs": [0.0, -0.71, -0.1], "entropy": [0.0, 0.6, 0.2], "importance_ratio": [1.0, 0.98, 1.0],
    }  # fmt: skip
    return jsonl(path, [row, row])


def nemo(path: Path) -> Path:
    rows = [
        {"content": ["user: 17+25?"], "rewards": [1.0 - i % 2], "input_lengths": [3], "token_ids": [[5, 6, 7]],
         "token_loss_mask": [[0, 1, 1]], "sample_loss_mask": [float(i < 3)], "advantages": [[0, 0.5, 0.5]],
         "generation_logprobs": [[0, -0.7, -0.1]], "prev_logprobs": [[0, -0.71, -0.1]], "idx": i}
        for i in range(4)
    ]  # fmt: skip
    return jsonl(path, rows)


def areal(path: Path) -> Path:
    rows = [
        {"task_id": 311, "sample_idx": i, "seqlen": 118, "prompt_len": 40 + 6 * (i == 2), "head_version": -1,
         "tail_version": 8, "reward": 1.0 - i % 2, "prompt": "...", "completion": "42"}
        for i in range(4)
    ]  # fmt: skip
    return jsonl(path, rows)


def text(content: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_text(content)
        return path

    return write


VERL_LINE = (
    "(TaskRunner pid=7) \x1b[36mstep:7 - critic/score/mean:0.3 - actor/pg_loss:-1e-05 - a/b:np.float64(2.0)\x1b[0m"
)
STATE = {"global_step": 2, "log_history": [{"step": 1, "loss": 0.0, "kl": 0.1}, {"step": 1, "eval_loss": 0.2}]}
METRICS = [{"step": s, "data": {"critic/score/mean": 0.1 * s, "actor/entropy": "NaN", "note": "x"}} for s in (7, 8)]
CSV = 'Step,"a - loss","a - loss__MIN","a - loss__MAX","b - loss"\n0,0.5,0.4,0.6,0.7\n1,,0.4,0.6,0.6\n'


def events(path: Path) -> Path:
    """Two steps of two scalars, written by TensorBoard's own writer."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(path.parent / "tb")) as writer:
        for step in (7, 8):
            writer.add_scalar("critic/score/mean", 0.25 * step, step, new_style=step == 8)
            writer.add_scalar("actor/entropy", 0.5, step)
            writer.add_text("note", "x", step)
    (made,) = (path.parent / "tb").iterdir()
    return made.rename(path)


#: format -> file name and its writer; the names say nothing.
EXAMPLES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "verl_rollout": ("a12.dat", lambda p: jsonl(p, v1_rows())),
    "verl_metrics": ("b.dat", lambda p: jsonl(p, METRICS)),
    "console": ("c.dat", text(f"INFO starting\n{VERL_LINE}\ndone\n")),
    "npz": ("d3.dat", lambda p: npz(p.with_suffix(".npz")).rename(p)),
    "torch_file": ("e.dat", pt),
    "safetensors": ("f.dat", tensors),
    "trl_completions": ("g.dat", trl_table),
    "trainer_state": ("h.dat", text(json.dumps(STATE, indent=2))),
    "csv_metrics": ("i.dat", text(CSV)),
    "lab_run": ("j", lab_run),
    "prime_rl": ("k.dat", prime),
    "nemo_rl": ("l7.dat", nemo),
    "areal": ("m.dat", areal),
    "skyrl_eval": (
        "n.dat",
        lambda p: jsonl(p, [{"input_prompt": "q", "output_response": "a", "score": 1.0, "stop_reason": "stop"}]),
    ),
    "tensorboard": ("p.dat", events),
    "metric_rows": ("o.dat", lambda p: jsonl(p, [{"step": i, "loss": 0.1, "reward/mean": 0.5} for i in range(3)])),
}
