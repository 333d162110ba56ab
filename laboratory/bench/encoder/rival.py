"""The same steps in PyTorch on the CPU: `rival.py FILE ENCODER THREADS STEPS {first|last}`.

FILE comes from the bench's `write`: weights, batch and targets. `first` and `last` say where the channels lie in memory
(PyTorch's default, and `channels_last`). Prints one JSON line like the bench's `run`.
"""

import json
import os
import sys
import time

path, encoder, threads, steps, channels = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
os.environ["OMP_NUM_THREADS"] = str(threads)
import torch  # noqa: E402  (the number of threads must be set first)
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(threads)
data = load_file(path)
batch, target = data.pop("input"), data.pop("target")


def convolution(inputs, outputs, side, stride=1):
    return nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        for number, (inputs, outputs) in enumerate(((3, 32), (32, 64), (64, 128))):
            setattr(self, f"conv{number}", convolution(inputs, outputs, 3))
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs))
        self.fc = nn.Linear(128 * 4 * 4, 128)

    def forward(self, x):
        for number in range(3):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            x = torch.max_pool2d(torch.relu_(x), 2)
        return self.fc(x.flatten(1))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = convolution(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        if stride > 1:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        else:
            self.downsample = nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        return torch.relu_(y.add_(self.downsample(x)))


class Resnet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = convolution(3, 64, 3), nn.BatchNorm2d(64)
        for stage in range(4):
            width, before = 64 << stage, 64 << max(stage - 1, 0)
            blocks = [Residual(before, width, 2 if stage else 1), Residual(width, width, 1)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(512, 128)

    def forward(self, x):
        x = torch.relu_(self.bn1(self.conv1(x)))
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


model = {"cnn-small": Small, "resnet18": Resnet18}[encoder]()
names = {name for name, _ in model.named_parameters()}
assert names == set(data), names ^ set(data)
model.load_state_dict(data, strict=False)
if channels == "last":
    model, batch = model.to(memory_format=torch.channels_last), batch.to(memory_format=torch.channels_last)
optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model.eval()
with torch.no_grad():
    vectors = model(batch).double().norm().item()
model.train()


def step():
    loss = nn.functional.mse_loss(model(batch), target)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


losses = [step()]
gradient = sum(parameter.grad.double().square().sum() for parameter in model.parameters()).sqrt().item()
wall, cpu = [], []
for _ in range(max(steps, 2)):
    start, start_cpu = time.perf_counter(), time.process_time()
    losses.append(step())
    wall.append(time.perf_counter() - start)
    cpu.append(time.process_time() - start_cpu)
print(json.dumps({"who": f"torch-{channels}", "encoder": encoder, "threads": threads, "rows": len(batch), "vectors": vectors,
                  "gradient": gradient, "first": losses[0], "third": losses[2], "wall": wall, "cpu": cpu}))
