#!/usr/bin/env python3
"""Trains one of torchvision's models on random images: `vision.py resnet50 --batch-size 128 --dtype bf16`."""

import argparse

import torch
import torchvision
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16", help="of autocast")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--iterations", type=int, default=40)
args = parser.parse_args()

torch.manual_seed(1234)
layout = torch.channels_last if args.channels_last else torch.contiguous_format
model = getattr(torchvision.models, args.model)().cuda().to(memory_format=layout)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
loss_of = nn.CrossEntropyLoss()
images = torch.randn(args.batch_size, 3, 224, 224, device="cuda").to(memory_format=layout)
labels = torch.randint(1000, (args.batch_size,), device="cuda")
for _ in range(args.iterations):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=args.dtype == "bf16"):
        loss = loss_of(model(images), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
