"""Small models of torch and transformers with random weights, and what they compute."""

from __future__ import annotations

import numpy as np
import torch
import transformers

import distir_ext as dx

BATCH, SEQUENCE, VOCABULARY, HIDDEN = 4, 8, 128, 64

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def randomly(make):
    """A model in evaluation mode whose weights show that they are used: norms and biases too."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        model = make().eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def llama(**config):
    config = transformers.LlamaConfig(**{**SIZES, **config})
    return randomly(lambda: transformers.LlamaForCausalLM(config))


def mixtral():
    sizes = {**SIZES, "num_hidden_layers": 1}
    config = transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    return randomly(lambda: transformers.MixtralForCausalLM(config))


def gpt2():
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=8, n_positions=32, vocab_size=128)
    return randomly(lambda: transformers.GPT2LMHeadModel(config))


class FeedForward(torch.nn.Module):
    def __init__(self, hidden=64, inner=128):
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden)
        self.gate = torch.nn.Linear(hidden, inner)
        self.up = torch.nn.Linear(hidden, inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden)

    def forward(self, x):
        x_normed = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(x_normed)) * self.up(x_normed))


class Attention(torch.nn.Module):
    def __init__(self, hidden=64, heads=8):
        super().__init__()
        self.heads = heads
        self.query = torch.nn.Linear(hidden, hidden)
        self.key = torch.nn.Linear(hidden, hidden)
        self.value = torch.nn.Linear(hidden, hidden)
        self.out = torch.nn.Linear(hidden, hidden)

    def forward(self, x):
        def split(y):
            return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = torch.softmax(query @ key.transpose(2, 3) / 8**0.5, -1)
        return self.out((scores @ value).transpose(1, 2).reshape(x.shape))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = torch.nn.LayerNorm(64)
        self.attention = Attention()
        self.feed_forward = FeedForward()

    def forward(self, x):
        return self.feed_forward(x + self.attention(self.attention_norm(x)))


class Stack(torch.nn.Module):
    """Two blocks between a table and a head."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, 64)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(64, VOCABULARY)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def stack():
    return randomly(Stack)


def ids():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=generator)


def expected(model, *inputs):
    with torch.no_grad():
        result = model(*inputs)
    return getattr(result, "logits", result).detach().numpy()


def error(actual, wanted):
    """Relative root mean square error."""
    actual = np.asarray(actual, np.float64)
    assert actual.shape == wanted.shape
    return np.sqrt(np.mean((actual - wanted) ** 2)) / np.sqrt(np.mean(wanted**2))


def run(sharded, *inputs, params=None):
    """Runs a partitioned model on torch tensors."""
    with dx.Session(sharded.mesh) as session:
        return torch.from_dlpack(sharded.load(session, params)(*inputs)).numpy().copy()


def kinds(sharded):
    """Counts the collectives of one step by kind."""
    counts = {}
    for each in dx.analysis.collectives(dx.lower(sharded.mod)):
        counts[each.kind] = counts.get(each.kind, 0) + each.count
    return counts
