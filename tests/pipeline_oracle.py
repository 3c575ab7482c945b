"""The pipeline as one plain loop over a heap: slow where the model is clever, and nothing shared with it."""

import heapq
import math


def simulate(
    durations, *, workers, batch_size, training_seconds, max_policy_lag, ahead=None, capacity=None, returns=True
):
    """Run the course's schedules.

    `ahead` is how many batches may be started ahead of the trainer (None: any number), `capacity` how many trajectories
    fit into the queue (None: all; a worker whose trajectory does not fit waits), `max_policy_lag` None rejects nothing,
    `returns` whether a reject may be replaced by another start.

    At one moment the trainer comes before the rollouts, and rollouts come in the order in which they started.
    """
    heap, rows, waiting, blocked, free = [], [], [], [], list(range(workers))
    version = steps = count = 0
    now, training, ends = 0.0, None, 0.0
    capacity = math.inf if capacity is None else capacity

    def allowed():
        rejects = sum(row.get("status") == "rejected" for row in rows) if returns else 0
        return math.floor((version + ahead) * batch_size + 1e-9) + rejects

    def settle():
        """Let everything happen that can happen now."""
        nonlocal training, count, steps
        moved = True
        while moved:
            moved = False
            if training is None and max_policy_lag is not None:
                for row in [row for row in waiting if version - row["start_version"] > max_policy_lag]:
                    waiting.remove(row)
                    row.update(status="rejected", ingested=now, ingestion_version=version, trained=None, update=None)
                    moved = True
            if blocked and len(waiting) < capacity:
                row = blocked.pop(0)
                waiting.append(row)
                free.append(row["worker"])
                moved = True
            elif free and len(rows) < len(durations) and (ahead is None or len(rows) < allowed()):
                row = {"task": len(rows), "worker": free.pop(0), "start": now, "start_version": version}
                rows.append(row)
                heapq.heappush(heap, (now + durations[row["task"]], 1, count, row))
                count += 1
                moved = True
            running = sum(kind for _, kind, _, _ in heap)
            last = len(rows) == len(durations) and not running and not blocked
            if not moved and training is None and (len(waiting) >= batch_size or (last and waiting)):
                training = waiting[:batch_size]
                del waiting[:batch_size]
                for row in training:
                    row.update(status="accepted", ingested=now, ingestion_version=version, update=steps)
                heapq.heappush(heap, (now + training_seconds, 0, count, None))
                count += 1
                moved = True

    settle()
    while heap:
        now, _, _, row = heapq.heappop(heap)
        if row is None:
            for trained in training:
                trained["trained"] = now
            version += 1
            steps += 1
            training = None
        else:
            row["end"] = now
            if len(waiting) < capacity and not blocked:
                waiting.append(row)
                free.append(row["worker"])
            else:
                blocked.append(row)
        settle()
        ends = now
    for row in rows:
        row["lag"] = row["ingestion_version"] - row["start_version"]
    return ends, rows
