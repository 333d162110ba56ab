#!/usr/bin/env python3
"""The usual way to a backfilling curve: torch for distances and top-k, scikit-learn for average precision, a grid of cuts.

    rival.py DIRECTORY OURS.json [--points 22]

Reads new.npy, adapted.npy, labels.npy and order.npy from DIRECTORY and the JSON line of `cargo bench -p rehang-files --bench curve` from OURS.json.
At every cut the gallery is put together, all distances are computed (torch.cdist), the five nearest are taken
(torch.topk) and scikit-learn's average_precision_score is called for every query. Each query leaves itself out.
Prints seconds, the largest differences from OURS.json, and how many times faster ours was; fails where the answers
differ. With fewer points than 22 only these are computed, and the time is scaled linearly to 22 and marked as scaled.
"""
import argparse
import json
import pathlib
import time

import numpy as np
import sklearn
import torch
from sklearn.metrics import average_precision_score

ALL_POINTS = 22


def evaluate(queries, gallery, labels):
    """Top-1, top-5 and mAP in percent."""
    distances = torch.cdist(queries, gallery, compute_mode="use_mm_for_euclid_dist")
    distances.fill_diagonal_(float("inf"))
    nearest = torch.topk(distances, 5, dim=1, largest=False).indices
    found = labels[nearest] == labels[:, None]
    scores = (-distances).numpy()
    names = labels.numpy()
    precisions = []
    for query in range(len(names)):
        others = np.arange(len(names)) != query
        right = names[others] == names[query]
        if right.any():
            precisions.append(average_precision_score(right, scores[query, others]))
    return (
        100 * found[:, 0].double().mean().item(),
        100 * found.any(dim=1).double().mean().item(),
        100 * float(np.mean(precisions)),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("ours", type=pathlib.Path)
    parser.add_argument("--points", type=int, default=ALL_POINTS)
    arguments = parser.parse_args()
    ours = json.loads(arguments.ours.read_text())
    torch.set_num_threads(ours["threads"])
    # Double precision, so that near ties are ranked as ours are and the answers can be compared to many digits.
    new, adapted = (
        torch.from_numpy(np.load(arguments.directory / f"{name}.npy")).double() for name in ("new", "adapted")
    )
    labels, order = (torch.from_numpy(np.load(arguments.directory / f"{name}.npy")) for name in ("labels", "order"))

    chosen = [round(i * (ALL_POINTS - 1) / max(arguments.points - 1, 1)) for i in range(arguments.points)]
    worst = {"top1": 0.0, "top5": 0.0, "map": 0.0}
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for point in chosen:
        cut = ours["grid"]["cuts"][point]
        gallery = adapted.clone()
        gallery[order[:cut]] = new[order[:cut]]
        values = evaluate(new, gallery, labels)
        for name, value in zip(worst, values):
            worst[name] = max(worst[name], abs(value - ours["grid"][name][point]))
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
    scaled = seconds * ALL_POINTS / len(chosen)
    print(
        json.dumps(
            {
                "rival": f"torch {torch.__version__}, scikit-learn {sklearn.__version__}",
                "threads": torch.get_num_threads(),
                "points_computed": len(chosen),
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "seconds_for_22_points": scaled,
                "scaled": len(chosen) != ALL_POINTS,
                "ours_seconds_for_all_points": ours["seconds"],
                "ratio": scaled / ours["seconds"],
                "largest_difference": worst,
            }
        )
    )
    assert max(worst.values()) < 1e-3, worst


if __name__ == "__main__":
    main()
