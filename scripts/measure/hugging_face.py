#!/usr/bin/env python3
"""Trains a language model of Hugging Face's transformers on random tokens:
`hugging_face.py llama --set hidden_size=1024 --batch-size 4`."""

import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", help="the type of its configuration: gpt2, llama, bert")
parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="of its configuration")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seq", type=int, default=512)
parser.add_argument("--iterations", type=int, default=40)
args = parser.parse_args()

torch.manual_seed(1234)
changes = {name: int(value) for name, value in (each.split("=") for each in args.set)}
config = AutoConfig.for_model(args.model, **changes)
kind = AutoModelForMaskedLM if args.model == "bert" else AutoModelForCausalLM
model = kind.from_config(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(config.vocab_size, (args.batch_size, args.seq), device="cuda")
for _ in range(args.iterations):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
