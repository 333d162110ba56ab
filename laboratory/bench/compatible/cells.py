"""Cells of the tables of this folder: over seeds, with what a paper prints in brackets."""

import statistics


def cell(values, paper=None):
    text = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"
    return text if paper is None else f"{text} ({paper})"


def met(across, own):
    """In how many seeds the criterion is met."""
    count = sum(new > old for new, old in zip(across, own))
    return {len(own): "yes", 0: "no"}.get(count, f"{count} of {len(own)}")


def gamma(across, own, best, paper=None):
    """(9), of the seeds that meet the criterion."""
    gains = [100 * (new - old) / (whole - old) for new, old, whole in zip(across, own, best) if new > old and whole > old]
    if gains:
        return cell(gains, paper)
    return "–" if paper is None else f"– ({paper})"
