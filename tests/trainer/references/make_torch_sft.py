"""Supervised losses as torch and transformers compute them: `python make_torch_sft.py [SMOLLM2_FOLDER]`.

Writes `torch_sft_tiny.json` beside itself, and `torch_sft_smollm2.json` where the model is given that
`examples/smollm2/build.py` makes. Each holds its settings, its batches (token ids and which are trained) and the loss
before each update.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE, STEPS = Path(__file__).parent, 20
SHAPE = {
    "vocab_size": 263, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
OPTIMIZER = {"b1": 0.9, "b2": 0.98, "eps": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0}


def main() -> None:
    torch.manual_seed(0)
    batches = [random_batch(number) for number in range(STEPS)]
    write("torch_sft_tiny.json", tiny(), batches, OPTIMIZER | {"learning_rate": 3e-3}, shape=SHAPE)
    if len(sys.argv) > 1:
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
        batches = [chat_batch(tokenizer, number) for number in range(STEPS)]
        write("torch_sft_smollm2.json", model, batches, OPTIMIZER | {"learning_rate": 1e-4})


def tiny() -> LlamaForCausalLM:
    """A random model whose numbers NumPy makes, so that the test can make them too."""
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    with torch.no_grad():
        for number, (_, weight) in enumerate(sorted(model.named_parameters())):
            drawn = np.random.default_rng([5, number]).normal(0, 0.1, tuple(weight.shape)) + (weight.ndim == 1)
            weight.copy_(torch.tensor(drawn, dtype=torch.float32))
    return model


def random_batch(number: int) -> list[dict[str, list[int]]]:
    draw = np.random.default_rng([6, number])
    lengths = [int(n) for n in draw.integers(8, 24, 4)]
    return [
        {"tokens": draw.integers(0, 60, n).tolist(), "mask": [0, *draw.integers(0, 2, n - 2).tolist(), 1]}
        for n in lengths
    ]


def conversation(number: int) -> list[dict[str, str]]:
    """Two turns of arithmetic; the test writes the same through our chat format."""
    a, b = 11 + number * 7 % 83, 3 + number * 5 % 17
    return [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": f"What is {a}+{b}?"},
        {"role": "assistant", "content": f"{a}+{b} is {a + b}."},
        {"role": "user", "content": "And less 1?"},
        {"role": "assistant", "content": f"{a + b - 1}"},
    ]


def chat_batch(tokenizer: Any, number: int) -> list[dict[str, Any]]:
    return [chat_row(tokenizer, conversation(number * 4 + i)) for i in range(4)]


def chat_row(tokenizer: Any, messages: list[dict[str, str]]) -> dict[str, Any]:
    """The template's ids up to the last end of a turn; trained is what follows an assistant's header, to that end."""

    def ids(upto: int, header: bool) -> list[int]:
        text = tokenizer.apply_chat_template(messages[:upto], tokenize=False, add_generation_prompt=header)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokens = ids(len(messages), False)
    tokens = tokens[: len(tokens) - tokens[::-1].index(end)]
    mask = [0] * len(tokens)
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            start = len(ids(i, True))
            stop = tokens.index(end, start) + 1
            mask[start:stop] = [1] * (stop - start)
    return {"messages": messages, "tokens": tokens, "mask": mask}


def write(name: str, model: Any, batches: list[list[dict[str, Any]]], settings: dict[str, float], **more: Any) -> None:
    found = {"torch": torch.__version__, "transformers": transformers.__version__, "optimizer": settings, **more}
    found |= {"losses": train(model, batches, settings), "batches": batches}
    text = json.dumps(found, separators=(",", ":")).replace('],"mask"', '],\n"mask"').replace("[{", "\n[{")
    (HERE / name).write_text(text + "\n")


def train(model: Any, batches: list[list[dict[str, Any]]], settings: dict[str, float]) -> list[float]:
    """The loss of each batch before its update: the mean over its trained tokens."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=settings["learning_rate"], betas=(settings["b1"], settings["b2"]), eps=settings["eps"],
    )  # fmt: skip
    losses = []
    for rows in batches:
        tokens, valid, mask = (pad(rows, key) for key in ("tokens", "valid", "mask"))
        logits = model(input_ids=tokens, attention_mask=valid).logits[:, :-1].float()
        logs = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]
        loss = -(logs * mask[:, 1:]).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
        optimizer.step()
        losses.append(loss.item())
        print(f"{len(losses)} {losses[-1]:.5f}", flush=True)
    return losses


def pad(rows: list[dict[str, Any]], key: str) -> torch.Tensor:
    longest = max(len(row["tokens"]) for row in rows)
    values = [[1] * len(row["tokens"]) if key == "valid" else row[key] for row in rows]
    return torch.tensor([v + [0] * (longest - len(v)) for v in values])


if __name__ == "__main__":
    main()
