#!/usr/bin/env python3
"""`rehang.torch` on a graphics card, step by step; each prints one JSON line at once, and none begins that would not end in time.

    run.py --out FOLDER [--device cuda] [--seconds 450] [--small] [--only STEP …]

Steps: losses (equal to the recorded values of Rust, and finite in mixed precision), link (what the bus gives), transform-memory and
transform-files (rows a second, and the share of the link), fit (FCT and FastFill at the authors' size), resnet (a ResNet-18 with RACT beside the same loop
without), curve (the exact curve on the processor beside PyTorch on the card, answers compared).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rehang
import rehang.torch as rt

BEGAN = time.monotonic()
TESTS = Path(__file__).resolve().parents[3] / "crates" / "rehang-python" / "tests"


class Run:
    """What steps share: the device, the sizes, the time that is left, and where lines go."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device = torch.device(arguments.device)
        self.small, self.seconds = arguments.small, arguments.seconds
        self.on_card = self.device.type == "cuda"
        self.out = Path(arguments.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self._lines = open(self.out / "results.jsonl", "a")
        # Bytes a second from and to the card, which a share is of.
        self.link: dict[str, float] = {}

    def left(self) -> float:
        return self.seconds - (time.monotonic() - BEGAN)

    def say(self, step: str, **what: Any) -> None:
        line = {"step": step, "at_s": round(time.monotonic() - BEGAN, 2), **{key: rounded(value) for key, value in what.items()}}
        text = json.dumps(line)
        print(text, flush=True)
        self._lines.write(text + "\n")
        self._lines.flush()

    def wait(self) -> None:
        if self.on_card:
            torch.cuda.synchronize(self.device)

    def pinned(self, *shape: int, dtype: Any = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self.on_card)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, (list, tuple)) else value


def machine(run: Run) -> None:
    card = {}
    if run.on_card:
        properties = torch.cuda.get_device_properties(run.device)
        card = {"name": properties.name, "memory_gib": properties.total_memory / 2**30, "processors": properties.multi_processor_count}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    run.say(
        "machine", card=card, cuda=torch.version.cuda, torch=torch.__version__, python=platform.python_version(), rehang=rehang.__version__,
        cores=len(os.sched_getaffinity(0)), memory_gib=memory, disk_free_gib=shutil.disk_usage(tempfile.gettempdir()).free / 2**30,
        started_s=time.monotonic() - BEGAN, small=run.small,
    )  # fmt: skip


def losses(run: Run) -> None:
    """Every loss against what Rust recorded, and finite under autocast with half as wide numbers."""
    sys.path.insert(0, str(TESTS))
    import torch_cases

    far = []
    for name, cases in (("training", torch_cases.of_training), ("adapters", torch_cases.of_adapters)):
        worst, which, count = 0.0, "", 0
        for case in cases():
            difference = case.difference(run.device, torch.float32)
            count += 1
            if difference > worst:
                worst, which = difference, case.name
        run.say("losses", of=name, cases=count, largest_difference=worst, at=which, dtype="float32")
        far += [f"{which} differs by {worst}"] if worst >= 1e-5 else []
    generator = torch.Generator().manual_seed(0)
    rows, d = (32, 64) if run.small else (512, 512)
    labels = torch.randint(0, 100, (rows,), generator=generator).to(run.device)
    wide = torch.randn(rows, d, generator=generator).to(run.device)
    old = torch.randn(rows, d, generator=generator).to(run.device)
    for dtype in (torch.bfloat16, torch.float16):
        old_head, head = (rt.Head(100, d, form="arcface").to(run.device) for _ in range(2))
        old_head = rt.Head.frozen(old_head.weight, form="arcface")
        psi, layer, sigma = (part.to(run.device) for part in (rt.ForwardHead(d, d, hidden=128), torch.nn.Linear(d, d), rt.UncertaintyHead(d)))
        # As small as a scaler comes to where gradients are large; the one that it begins with would take some of them out of half precision.
        scaler = torch.amp.GradScaler(run.device.type, init_scale=16.0, enabled=dtype == torch.float16)
        with torch.autocast(run.device.type, dtype=dtype):
            new, adapted = layer(wide), psi(old)
        made = {
            "classification": rt.Classification(0.1)(new, labels, head),
            "influence": rt.Influence(old_head, new_classes="distillation")(new, labels, old),
            **{f"contrast {form}": rt.Contrast(form)(new, old, labels) for form in ("contrastive", "vanilla", "split")},
            "triplet": rt.Triplet()(new, old, labels),
            "selective": rt.Selective(old_head)(new, old, labels),
            "forward-adaptive": rt.ForwardAdaptive()(adapted, labels, head),
            "regression": rt.Regression(old_head)(new, old, labels, adapted),
            "distance": rt.VectorDistance()(new, old),
            "distillation": rt.HeadDistillation(old_head)(new, old),
            "focal features": rt.FocalDistillation(old_head)(new, old, labels),
            "focal probabilities": rt.FocalDistillation(old_head, "probabilities")(new, old, labels, head),
            "both-heads": rt.BothHeads(old_head)(new, labels, head),
            "fastfill": rt.FastFill(head=head)(new, old, labels, sigma(new)),
            "λ-orthogonality": rt.LambdaOrthogonality()(new, adapted, old, layer.weight, labels),
        }
        bad = []
        for name, value in made.items():
            slopes = torch.autograd.grad(scaler.scale(value), [layer.weight], retain_graph=True, allow_unused=True)[0]
            if not (value.isfinite() and (slopes is None or slopes.isfinite().all()) and value.dtype == torch.float32):
                bad.append(name)
        run.say("losses", of="mixed precision", dtype=str(dtype), cases=len(made), not_finite=bad)
        far += [f"{name} is not finite in {dtype}" for name in bad]
    assert not far, far


def link(run: Run) -> None:
    """What pinned copies reach, one way and both ways at once."""
    size = 1 << (24 if run.small else 30)
    here, here_too = (run.pinned(size, dtype=torch.uint8) for _ in range(2))
    there, there_too = (torch.empty(size, dtype=torch.uint8, device=run.device) for _ in range(2))
    streams = [torch.cuda.Stream(run.device) for _ in range(2)] if run.on_card else []

    def both() -> None:
        if not run.on_card:
            there.copy_(here)
            here_too.copy_(there_too)
            return
        for stream, to, of in ((streams[0], there, here), (streams[1], here_too, there_too)):
            with torch.cuda.stream(stream):
                to.copy_(of, non_blocking=True)

    for name, copy in (
        ("to_card", lambda: there.copy_(here, non_blocking=True)),
        ("from_card", lambda: here_too.copy_(there_too, non_blocking=True)),
        ("both_ways", both),
    ):
        copy()
        run.wait()
        times = []
        for _ in range(5):
            begin = time.monotonic()
            copy()
            run.wait()
            times.append(time.monotonic() - begin)
        run.link[name] = size / sorted(times)[2]
    run.say("link", gb_per_s={name: rate / 1e9 for name, rate in run.link.items()}, bytes=size)


def adapters(run: Run) -> dict[str, rehang.Adapter]:
    """FCT's network with ψ and DMU's head, both 128 → 256, with weights as they begin and statistics of random rows."""
    d_old, d_new = 128, 256
    rng = np.random.default_rng(0)
    old, new = (rng.standard_normal((4096, d), dtype=np.float32) for d in (d_old, d_new))
    torch.manual_seed(0)
    hidden = (64, 64) if run.small else (2048, 1024)
    fct, psi = rt.AdapterNetwork(d_old, d_new, hidden=hidden[0]), rt.ForwardHead(d_old, d_new, hidden=hidden[1])
    with torch.no_grad():
        for network in (fct, psi):
            network(torch.from_numpy(old))
    return {
        "fct": rt.to_adapter(fct, old, new, uncertainty=rt.UncertaintyHead(d_new)),
        "dmu": rt.to_adapter(psi, old, new, uncertainty=1.0),
    }


def settings(run: Run) -> list[tuple[str, str, str]]:
    """A name, the type of what comes out, and PyTorch's switch for products in single precision."""
    return [("float32", "float32", "highest"), ("tf32", "float32", "high"), ("float16", "float16", "highest")]


def share_of_link(run: Run, rows: int, seconds: float, bytes_in: int, bytes_out: int) -> dict[str, float]:
    """How near it comes to what the link allows, were nothing else to be done: the slower of both directions."""
    if not run.link:
        return {}
    least = rows * max(bytes_in / run.link["to_card"], bytes_out / run.link["from_card"])
    return {"link_seconds": least, "share_of_link": least / seconds}


def transform_memory(run: Run) -> None:
    rows, passes = (20_000, 2) if run.small else (10_000_000, 10)
    made = adapters(run)
    old = run.pinned(rows, 128)
    begin = time.monotonic()
    for part in old.split(1_000_000):
        part.copy_(torch.randn(part.shape, device=run.device))
    sigma = torch.empty(rows)
    run.wait()
    outs = {"float32": run.pinned(rows, 256), "float16": run.pinned(rows, 256, dtype=torch.float16)}
    run.say("transform-memory", prepared_s=time.monotonic() - begin, rows=rows)
    seen, far = old[:2048].numpy(), []
    for name, adapter in made.items():
        expected, sigma2 = adapter.transform(seen, return_sigma=True, force=True)
        for setting, dtype, precision in settings(run):
            if run.left() < 60 and not run.small:
                run.say("transform-memory", adapter=name, setting=setting, left_out="no time left")
                continue
            torch.set_float32_matmul_precision(precision)
            # The first rows warm the card, and are compared.
            first = rt.transform(adapter, old[:200_000] if not run.small else old, dtype=dtype, device=run.device, force=True)
            largest = float(np.abs(first.vectors[: len(seen)].astype(np.float64) - expected).max() / np.abs(expected).max())
            of_sigma = float(np.abs(first.sigma2[: len(seen)] / sigma2 - 1).max())
            out, done, begin = outs[dtype], 0, time.monotonic()
            limit = 20.0 if setting == "float32" else 12.0
            for _ in range(passes):
                rt.transform(adapter, old, out, sigma=sigma, dtype=dtype, device=run.device, force=True)
                done += rows
                if time.monotonic() - begin > limit:
                    break
            seconds = time.monotonic() - begin
            run.say(
                "transform-memory", adapter=name, setting=setting, memory="pinned", rows=done, seconds=seconds, rows_per_s=done / seconds,
                seconds_for_a_billion=1e9 * seconds / done, difference_from_rust=largest, sigma2_difference=of_sigma,
                **share_of_link(run, done, seconds, 128 * 4, 256 * (4 if dtype == "float32" else 2) + 4),
            )  # fmt: skip
            if setting == "float32" and not (largest < 1e-5 and of_sigma < 1e-5):
                far.append((name, largest, of_sigma))
    torch.set_float32_matmul_precision("highest")
    # What an ordinary array costs: it is copied through pinned buffers.
    if run.left() > 60 or run.small:
        plain, into = np.array(old.numpy()), np.empty((rows, 256), dtype=np.float16)
        into.fill(0)
        begin = time.monotonic()
        rt.transform(made["dmu"], plain, torch.from_numpy(into), dtype="float16", device=run.device, force=True)
        seconds = time.monotonic() - begin
        run.say(
            "transform-memory", adapter="dmu", setting="float16", memory="plain", rows=rows, seconds=seconds, rows_per_s=rows / seconds,
            **share_of_link(run, rows, seconds, 128 * 4, 256 * 2 + 4),
        )  # fmt: skip
    few = 2_000 if run.small else 200_000
    for name, adapter in made.items():
        begin = time.monotonic()
        adapter.transform(old[:few].numpy(), force=True)
        seconds = time.monotonic() - begin
        run.say("transform-memory", adapter=name, setting="rehang.Adapter.transform on the processor", rows=few, seconds=seconds, rows_per_s=few / seconds)
    assert not far, f"further from Rust than 1e-5: {far}"


def transform_files(run: Run) -> None:
    partitions, rows = (3, 5_000) if run.small else (6, 2_500_000)
    made = adapters(run)
    folder = Path(tempfile.mkdtemp(prefix="rehang-gpu-"))
    try:
        begin, written = time.monotonic(), 0
        (folder / "old").mkdir()
        for part in range(partitions):
            np.save(folder / "old" / f"part-{part}.npy", torch.randn(rows, 128, device=run.device).cpu().numpy())
            written += 1
            if time.monotonic() - begin > 15:
                break
        run.say("transform-files", prepared_s=time.monotonic() - begin, partitions=written, rows=written * rows, folder=str(folder))
        for name, setting, dtype, precision in (
            ("fct", "tf32", "float32", "high"), ("dmu", "float16", "float16", "highest"), ("fct", "float16", "float16", "highest"),
        ):  # fmt: skip
            if run.left() < 60 and not run.small:
                run.say("transform-files", adapter=name, setting=setting, left_out="no time left")
                continue
            torch.set_float32_matmul_precision(precision)
            begin = time.monotonic()
            done = rt.transform(made[name], folder / "old", folder / "new", sigma=folder / "sigma", dtype=dtype, device=run.device, force=True)
            seconds = time.monotonic() - begin
            assert done.made == written and done.rows == written * rows
            again = rt.transform(made[name], folder / "old", folder / "new", sigma=folder / "sigma", dtype=dtype, device=run.device, force=True)
            assert (again.made, again.there) == (0, written)
            first = np.load(folder / "new" / "part-0.npy", mmap_mode="r")[:512]
            expected = made[name].transform(np.load(folder / "old" / "part-0.npy", mmap_mode="r")[:512], force=True)
            run.say(
                "transform-files", adapter=name, setting=setting, rows=done.rows, seconds=seconds, rows_per_s=done.rows / seconds,
                difference_from_rust=float(np.abs(first.astype(np.float64) - expected).max() / np.abs(expected).max()),
                **share_of_link(run, done.rows, seconds, 128 * 4, 256 * (4 if dtype == "float32" else 2) + 4),
            )  # fmt: skip
            shutil.rmtree(folder / "new")
            shutil.rmtree(folder / "sigma")
    finally:
        torch.set_float32_matmul_precision("highest")
        shutil.rmtree(folder, ignore_errors=True)


def fit(run: Run) -> None:
    """Epochs at the authors' size: ImageNet's 1,281,167 pairs of 128 coordinates, a mixer of 2048, batches of 1024."""
    pairs, epochs, classes = (3_000, 2, 10) if run.small else (1_281_167, 3, 1000)
    hidden = 64 if run.small else 2048
    torch.manual_seed(0)
    with torch.no_grad():
        centres = torch.randn(classes, 128, device=run.device)
        labels = torch.randint(0, classes, (pairs,), device=run.device)
        inner = centres[labels] + 0.5 * torch.randn(pairs, 128, device=run.device)
        turn = torch.linalg.qr(torch.randn(128, 128, device=run.device))[0]
        old = (inner @ turn).tanh() + 0.2 * torch.randn(pairs, 128, device=run.device)
        arrays = [part.cpu().numpy() for part in (old, inner, labels)]
    del old, inner
    head = rt.Head.frozen(centres)
    for method, dtype, precision in (
        ("fct", torch.float32, "highest"), ("fct", torch.float32, "high"), ("fct", torch.bfloat16, "highest"),
        ("fastfill-reference", torch.float32, "high"),
    ):  # fmt: skip
        if run.left() < 45 and not run.small:
            run.say("fit", method=method, dtype=str(dtype), left_out="no time left")
            continue
        torch.set_float32_matmul_precision(precision)
        begin = time.monotonic()
        adapter = rt.fit_adapter(
            arrays[0], arrays[1], labels=arrays[2], method=method, head=head, epochs=epochs, hidden=hidden, device=run.device, dtype=dtype, seed=0,
        )  # fmt: skip
        answer = adapter.answer or {}
        # The first epoch has the start of the card's libraries in it.
        epoch = min(answer["seconds"][1:])
        run.say(
            "fit", method=method, dtype=str(dtype), products=precision, pairs=pairs, epochs=epochs, seconds=time.monotonic() - begin,
            epoch_seconds=answer["seconds"], hours_for_80_epochs=80 * epoch / 3600, loss=answer["history"],
        )  # fmt: skip
        assert answer["history"][-1] < answer["history"][0]
    torch.set_float32_matmul_precision("highest")
    seen = arrays[0][:1000]
    module = adapter.to_torch()
    difference = np.abs(module(torch.from_numpy(seen))[0].numpy() - adapter.transform(seen, force=True)).max()
    run.say("fit", what="the adapter's module beside the processor", difference=float(difference))


def resnet(run: Run) -> None:
    """The same steps of training with and without RACT's loss: what it costs."""
    import torchvision

    for shape, side, batch, steps, classes in (
        (("CIFAR-100", 32, 256, 196, 100), ("ImageNet", 224, 256, 60, 1000)) if not run.small else (("CIFAR-100", 32, 16, 2, 100),)
    ):
        torch.manual_seed(0)
        images = torch.randn(batch, 3, side, side, device=run.device).to(memory_format=torch.channels_last)
        old_model = torchvision.models.resnet18(num_classes=128).to(run.device).to(memory_format=torch.channels_last).eval()
        old_model.requires_grad_(False)
        generator = torch.Generator(device=run.device).manual_seed(1)
        for name in ("plain", "ract, old vectors cached", "ract, old model run"):
            if run.left() < 40 and not run.small:
                run.say("resnet", shape=shape, loss=name, left_out="no time left")
                continue
            torch.manual_seed(0)
            model = torchvision.models.resnet18(num_classes=128).to(run.device).to(memory_format=torch.channels_last)
            head = rt.Head(classes, 128).to(run.device)
            classify, contrast = rt.Classification(), rt.Contrast()
            optimiser = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01, momentum=0.9)
            cached = torch.randn(batch, 128, device=run.device)

            def step() -> torch.Tensor:
                labels = torch.randint(0, classes, (batch,), device=run.device, generator=generator)
                with torch.autocast(run.device.type, dtype=torch.bfloat16):
                    new = model(images)
                    old = old_model(images) if name.endswith("run") else cached
                loss = classify(new, labels, head)
                if name != "plain":
                    loss = loss + contrast(new, old, labels)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                return loss.detach()

            for _ in range(2 if run.small else 10):
                step()
            run.wait()
            begin = time.monotonic()
            for _ in range(steps):
                loss = step()
            run.wait()
            seconds = time.monotonic() - begin
            run.say(
                "resnet", shape=shape, loss=name, batch=batch, steps=steps, images=batch * steps, seconds=seconds, images_per_s=batch * steps / seconds,
                last_loss=float(loss),
            )  # fmt: skip
            assert bool(loss.isfinite())


def curve(run: Run) -> None:
    """rehang's exact curve, at every one of the n + 1 fractions, on the processor; PyTorch's at eleven of them on the card."""
    n, m, d, classes = (5_000, 50, 32, 50) if run.small else (1_000_000, 500, 128, 1000)
    cuts = [round(n * point / 10) for point in range(11)]
    torch.manual_seed(0)
    with torch.no_grad():
        centres = torch.randn(classes, d, device=run.device)
        labels = torch.randint(0, classes, (n,), device=run.device)
        asked = torch.randint(0, classes, (m,), device=run.device)
        new = centres[labels] + 2.5 * torch.randn(n, d, device=run.device)
        adapted = new + 1.5 * torch.randn(n, d, device=run.device)
        queries = centres[asked] + 2.5 * torch.randn(m, d, device=run.device)
        order = torch.randperm(n, device=run.device)
    arrays = [part.cpu().numpy() for part in (new, adapted, order, labels, queries, asked)]
    begin = time.monotonic()
    ours = rehang.curve(
        arrays[0], arrays[1], arrays[2], labels=arrays[3], queries=arrays[4], query_labels=arrays[5], distance="l2", bootstrap=0, progress=False
    )
    seconds = time.monotonic() - begin
    run.say("curve", by=f"rehang on {len(os.sched_getaffinity(0))} cores", items=n, queries=m, d=d, fractions=n + 1, seconds=seconds)

    begin, theirs = time.monotonic(), {}
    place = torch.empty_like(order)
    place[order] = torch.arange(n, device=run.device)
    with torch.no_grad():
        wide = [part.double() for part in (new, adapted)]
        squares = [part.square().sum(dim=1) for part in wide]
        right = labels[None, :] == asked[:, None]
        tile = 25
        for cut in cuts:
            if run.left() < 15 and not run.small:
                break
            is_native = place < cut
            sums = torch.zeros(3, dtype=torch.float64, device=run.device)
            for first in range(0, m, tile):
                rows = queries[first : first + tile].double()
                distances = [square - 2 * rows @ part.T for square, part in zip(squares, wide, strict=True)]
                ranked = torch.where(is_native, distances[0], distances[1]).sort(dim=1, stable=True).indices
                hit = right[first : first + tile].gather(1, ranked)
                ranks = torch.arange(1, n + 1, dtype=torch.float64, device=run.device)
                precision = torch.where(hit, hit.cumsum(dim=1) / ranks, 0.0).sum(dim=1) / hit.sum(dim=1)
                sums += torch.stack([hit[:, 0].double().sum(), hit[:, :5].any(dim=1).double().sum(), precision.sum()])
            theirs[cut] = [float(part) * 100 / m for part in sums]
        run.wait()
    seconds_torch = time.monotonic() - begin
    worst = {
        metric: max(abs(float(ours.points(metric)[cut]) - values[place_of]) for cut, values in theirs.items())
        for place_of, metric in enumerate(("top1", "top5", "map"))
        if metric in ours.metrics
    }
    run.say(
        "curve", by=f"torch on {run.device}", fractions=len(theirs), seconds=seconds_torch, seconds_a_fraction=seconds_torch / len(theirs),
        seconds_for_every_fraction=seconds_torch / len(theirs) * (n + 1), largest_difference=worst,
        ours={metric: [float(ours.points(metric)[cut]) for cut in (0, n)] for metric in worst},
    )  # fmt: skip
    assert worst and max(worst.values()) < 1e-3, worst


STEPS: list[tuple[Callable[[Run], None], float]] = [
    (machine, 0), (losses, 10), (link, 5), (transform_memory, 60), (resnet, 30), (fit, 40), (curve, 40), (transform_files, 40),
]  # fmt: skip
"""Steps, and seconds that have to be left for one to begin."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=450, help="when the last step has to be done")
    parser.add_argument("--small", action="store_true", help="sizes for a look on the processor")
    parser.add_argument("--only", nargs="*", help="steps by name")
    arguments = parser.parse_args()
    import warnings

    warnings.simplefilter("ignore", rehang.FindingWarning)
    run, failed = Run(arguments), []
    for step, needs in STEPS:
        name = step.__name__.replace("_", "-")
        if arguments.only and name not in arguments.only:
            continue
        if run.left() < needs and not run.small:
            run.say(name, left_out="no time left")
            continue
        begin = time.monotonic()
        try:
            step(run)
            run.say(name, done=True, step_s=time.monotonic() - begin)
        except Exception as error:
            failed.append(name)
            run.say(name, failed=f"{type(error).__name__}: {error}", where=traceback.format_exc().splitlines()[-4:])
        if run.on_card:
            torch.cuda.empty_cache()
    run.say("end", failed=failed, seconds=time.monotonic() - BEGAN)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
