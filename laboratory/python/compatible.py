#!/usr/bin/env python3
"""A new model that may search the old model's gallery: trained by RACT, BCT or without regard for it, and what that is worth.

    compatible.py                                              # synthetic images of the shape of CIFAR-100's, on the processor, in a minute
    compatible.py --method bct                                 # BCT's influence loss
    compatible.py --device cuda --folder imagenet --epochs 90  # class folders of images, `train` and `val`, through torchvision

The old model knows a third of the images, the new one all (RACT's "expansion"); with --known 0.5 the old one knows half of the classes. Needs
PyTorch; with --folder torchvision, too.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import rehang.torch as rt
import rehang_lab


def synthetic(classes: int, per_class: int, seed: int) -> Any:
    """Images ``[3, 32, 32]``: a smooth pattern a class, moved, brightened and under noise."""
    patterns = torch.randn(classes, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    patterns = torch.nn.functional.interpolate(patterns, size=(32, 32), mode="bicubic")
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    moved = torch.randint(-6, 7, (len(labels), 2), generator=random).tolist()
    images = torch.stack([patterns[label].roll((down, right), (1, 2)) for label, (down, right) in zip(labels.tolist(), moved, strict=True)])
    gains = 0.5 + torch.rand(len(labels), 1, 1, 1, generator=random)
    return TensorDataset(gains * images + 1.2 * torch.randn(images.shape, generator=random), labels)


def small_encoder(dimension: int) -> Any:
    layers: list[Any] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, dimension))


def train(encoder: Any, head: Any, data: Dataset, arguments: argparse.Namespace, old: Any = None, old_head: Any = None) -> None:
    """One loop for all methods: a loss of the model's own, and with an old model one that makes it compatible."""
    classify, contrast = rt.Classification(), rt.Contrast()
    influence = None if old_head is None else rt.Influence(old_head)
    optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=arguments.learning_rate)
    half = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    loader = DataLoader(data, arguments.batch, shuffle=True, drop_last=True, num_workers=arguments.workers, pin_memory=arguments.device == "cuda")
    for _ in range(arguments.epochs):
        encoder.train()
        for images, labels in loader:
            images, labels = images.to(arguments.device, non_blocking=True), labels.to(arguments.device, non_blocking=True)
            with torch.autocast(arguments.device, dtype=half, enabled=half != torch.float32):
                new = encoder(images)
            loss = classify(new, labels, head)
            if old is not None and arguments.method == "ract":
                with torch.no_grad():
                    old_vectors = old(images)
                loss = loss + arguments.weight * contrast(new, old_vectors, labels)
            elif influence is not None and arguments.method == "bct":
                loss = loss + arguments.weight * influence(new, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    encoder.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["ract", "bct", "plain"], default="ract")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="a folder with `train` and `val`, a folder of images a class in each")
    parser.add_argument("--known", type=float, default=1.0, help="share of the classes that the old model knows")
    parser.add_argument("--weight", type=float, default=1.0, help="λ, the weight of the loss that makes compatible")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(0)

    if arguments.folder:
        import torchvision
        from torchvision import transforms

        ready = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        varied = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *ready])
        plain = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *ready])
        training = torchvision.datasets.ImageFolder(f"{arguments.folder}/train", varied)
        gallery = torchvision.datasets.ImageFolder(f"{arguments.folder}/val", plain)
        of_training, classes = training.targets, len(training.classes)

        def made(dimension: int) -> Any:
            return torchvision.models.resnet18(num_classes=dimension)
    else:
        classes = 20
        training, gallery = synthetic(classes, 60, seed=1), synthetic(classes, 20, seed=2)
        of_training, made = training.tensors[1].tolist(), small_encoder

    known = max(round(arguments.known * classes), 2)
    of_old = [row for row, label in enumerate(of_training) if label < known and row % 3 == 0]
    dimension = 64
    old, old_head = made(dimension).to(arguments.device), rt.Head(known, dimension).to(arguments.device)
    train(old, old_head, Subset(training, of_old), arguments)
    old.requires_grad_(False)
    frozen = rt.Head.frozen(old_head.weight, old_head.bias)
    if arguments.method == "bct":
        old_vectors, labels = rehang_lab.embed(old, training, device=arguments.device)
        assert labels is not None
        on_device, of_each = (torch.from_numpy(part).to(arguments.device) for part in (old_vectors, labels))
        frozen = rt.synthesised(frozen, on_device, of_each, classes)
    new, head = made(dimension).to(arguments.device), rt.Head(classes, dimension).to(arguments.device)
    train(new, head, training, arguments, old=old, old_head=frozen)

    vectors = {}
    for name, model in (("old", old), ("new", new)):
        vectors[name], labels = rehang_lab.embed(model, gallery, device=arguments.device)
    said = rehang_lab.cross(vectors, labels=labels, distance="cosine")
    print(f"{arguments.method}, queries by row, gallery by column")
    print(f"{'':10}" + "".join(f"{metric + ' ' + name:>12}" for metric in ("top-1", "mAP") for name in vectors))
    for place, name in enumerate(vectors):
        values = [value for metric in ("top1", "map") for value in said["metrics"][metric]["matrix"][place]]
        print(f"{name:10}" + "".join(f"{value:12.2f}" for value in values))
    pair = said["metrics"]["map"]["pairs"][0]
    print(f"criterion {'met' if pair['criterion_met'] else 'not met'}, mAP {pair['absolute_gain']:+.2f} at once")

    # The backfill: what the new head doubts most of the old vectors comes first.
    doubt = rt.refresh_order("entropy", head, torch.from_numpy(vectors["old"]))
    orders = {"entropy": doubt, "random": torch.randperm(len(doubt)).numpy()}
    followed = rehang_lab.refresh(vectors, orders, labels=labels, distance="cosine")
    print("re-embedded, percent   0      25      50      75     100    area")
    for order in followed["orders"]:
        for metric in ("map", "nfr1"):
            line = order["metrics"][metric]
            print(f"{order['order']:8} {metric:6}" + "".join(f"{value:8.2f}" for value in [*line["values"], line["area"]]))


if __name__ == "__main__":
    main()
