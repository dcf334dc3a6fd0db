"""Greedy decoding as gpt-fast does it: compiled PyTorch, a static cache, one CUDA graph; of the Llama family."""

import functools
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from caw.decoding.capture.fixed_step import COMPILED as MOST_COMPILED
from caw.decoding.forward.attention import declared_window
from caw.decoding.forward.layer_kinds import LLAMAS, NORMS, PROJECTIONS, class_name

COMPILED = "compiled-torch"  # the name of its mode
ROUND = 256  # tokens of the cache, so that texts of about one length are compiled once
WARM_UP = 3  # steps before the capture: the first ones compile


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def layer_step(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor | None], cache: list[torch.Tensor],
    places: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor, eps: float, scale: float,
) -> torch.Tensor:  # fmt: skip
    """x [B, T, E] through a layer; its keys and values join the cache [B, HK, S, D] at places int64 [T]."""
    norm1, norm2, wq, wk, wv, wo, wg, wu, wd = weights[:9]
    dim = cache[0].shape[-1]
    inner = normed(x, norm1, eps)
    q, k, v = (linear(inner, w, b).unflatten(-1, (-1, dim)) for w, b in zip((wq, wk, wv), biases[:3], strict=True))
    if len(weights) > 9:
        q, k = normed(q, weights[9], eps), normed(k, weights[10], eps)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    cache[0].index_copy_(2, places, rotated(k, *rotary))
    cache[1].index_copy_(2, places, v)
    mixed = scaled_dot_product_attention(
        rotated(q, *rotary), cache[0], cache[1], attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    x = x + linear(mixed.transpose(1, 2).flatten(2), wo, biases[3])
    inner = normed(x, norm2, eps)
    return x + linear(silu(linear(inner, wg, biases[4])) * linear(inner, wu, biases[5]), wd, biases[6])


def likeliest(x: torch.Tensor, norm: torch.Tensor, vocabulary: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the most likely token of the last position of x [B, T, E]: int64 [B, 1]."""
    return linear(normed(x[:, -1:], norm, eps), vocabulary)[:, 0].argmax(-1, keepdim=True)


@functools.cache
def compiled(function: Any) -> Any:
    """Once for all layers and calls: the weights are arguments."""
    return torch.compile(function, dynamic=False, fullgraph=True)


class CompiledTorch:
    """Decodes `batch` texts of up to `capacity` tokens, replayed after the first `prepare`; ValueError for others."""

    def __init__(self, model: Any, batch: int, capacity: int) -> None:
        self.body, self.head = model.get_decoder(), model.get_output_embeddings()
        layers = list(self.body.layers)
        if any(class_name(x) not in LLAMAS or declared_window(x.self_attn) is not None for x in layers):
            raise ValueError(
                f"compiled torch needs whole layers of {', '.join(sorted(LLAMAS))}, got others; leave it out"
            )
        if not all(hasattr(x.get_submodule(name), "weight") for x in layers for name in PROJECTIONS):
            raise ValueError("compiled torch needs plain weights, got packed ones; leave it out")
        self.weights = [[x.get_submodule(name).weight for name in (*NORMS, *PROJECTIONS)] for x in layers]
        for own, x in zip(self.weights, layers, strict=True):
            own += [x.self_attn.q_norm.weight, x.self_attn.k_norm.weight] if hasattr(x.self_attn, "q_norm") else []
        self.biases = [[x.get_submodule(name).bias for name in PROJECTIONS] for x in layers]
        self.eps, self.scale = float(self.body.norm.variance_epsilon), float(layers[0].self_attn.scaling)
        dim, device = layers[0].self_attn.head_dim, model.device
        capacity = -(-capacity // ROUND) * ROUND
        heads, dtype = self.weights[0][3].shape[0] // dim, self.weights[0][2].dtype
        shape = (batch, heads, capacity, dim)
        self.cache = [[torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)] for _ in layers]
        self.seats = torch.arange(capacity, device=device)
        self.rotary = [t[0] for t in self.body.rotary_emb(self.cache[0][0][:1, 0], self.seats[None])]
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.place, self.out = self.seats[:1].clone(), torch.zeros(batch, capacity, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def forward(self, ids: torch.Tensor, places: torch.Tensor, layer: Any, head: Any) -> torch.Tensor:
        x, mask = self.body.embed_tokens(ids), self.seats <= places[:, None]
        rotary = (self.rotary[0].index_select(0, places), self.rotary[1].index_select(0, places))
        for weights, biases, cache in zip(self.weights, self.biases, self.cache, strict=True):
            x = layer(x, weights, biases, cache, places, rotary, mask, self.eps, self.scale)
        found: torch.Tensor = head(x, self.body.norm.weight, self.head.weight, self.eps)
        return found

    def step(self) -> None:
        """One token of every text; the same calls on the same addresses each time."""
        self.out.index_copy_(1, self.place, self.token)
        # each batch and capacity is compiled anew, and torch gives up after eight of them
        with torch._dynamo.config.patch(recompile_limit=MOST_COMPILED, accumulated_recompile_limit=MOST_COMPILED):
            self.token.copy_(self.forward(self.token, self.place, compiled(layer_step), compiled(likeliest)))
        self.place.add_(1)

    def prepare(self) -> None:
        """Compile, and capture on a GPU."""
        for _ in range(WARM_UP):
            self.reset(0)
            self.step()
        if not self.token.is_cuda:
            return
        torch.cuda.synchronize()
        self.reset(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.graph = graph

    def reset(self, place: int) -> None:
        """Go on as if `place` tokens were in the cache."""
        self.place.fill_(place)

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, tokens: int) -> list[list[int]]:
        """`tokens` new ones of each text; ids: prompts int64 [B, T]."""
        length = ids.shape[1]
        self.token.copy_(self.forward(ids, self.seats[:length], layer_step, likeliest))
        self.reset(length)
        for _ in range(tokens - 1):
            (self.graph.replay if self.graph is not None else self.step)()
        last = length + tokens - 1
        self.out[:, last] = self.token[:, 0]
        return self.out[:, length : last + 1].tolist()
