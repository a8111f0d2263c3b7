"""What decoder_peers.py runs: one job a process, one line of JSON out.

``python decoder_scripts.py JOB GIVEN.json``. Every job measures the same of every head, over the
same batches of token ids: the mean weight on the token before, on the first token, and the mean
entropy. The peers' jobs run in the peers' own environment, where headscope is not. What only reads
tokens runs without the language model's head, and stops behind the last pattern, where a program
can.
"""

from contextlib import contextmanager

import numpy as np
import torch
from peer_scripts import clock, load_modules, run_job, versions

__all__ = ["versions"]  # a job, too
STATISTICS = ("previous", "first", "entropy")


def head_sums(pattern, mask):
    """Sum a batch's patterns (batch, heads, pos, pos) over queries: (STATISTICS, heads).

    ``mask`` (batch, pos) is 1 at tokens. The first token is read by queries from position 4 on, the
    others from position 2 on, as in headscope's ``classify``.
    """
    real = mask.double()
    later = real[:, 4:]
    previous = pattern.diagonal(-1, dim1=-2, dim2=-1)[..., 1:].double()  # of queries 2, 3, ...
    tiny = torch.finfo(pattern.dtype).tiny
    entropy = -(pattern * pattern.clamp(min=tiny).log()).sum(-1).double()
    return torch.stack(
        [
            torch.einsum("bhq,bq->h", previous, real[:, 2:]),
            torch.einsum("bhq,bq->h", pattern[..., 4:, 0].double(), later),
            torch.einsum("bhq,bq->h", entropy[..., 2:], real[:, 2:]),
        ]
    )


def means_of(inputs, sums):
    """Turn sums (layers, STATISTICS, heads) into means: (STATISTICS, layers, heads), as lists."""
    lengths = np.array([len(ids) for batch in inputs["batches"] for ids in batch])
    n_later = np.maximum(lengths - 4, 0).sum()
    n_queries = np.maximum(lengths - 2, 0).sum()
    counts = np.array([n_queries, n_later, n_queries])[:, None]
    means = np.asarray(sums) / counts
    return means.transpose(1, 0, 2).tolist()


def padded(inputs):
    """Pad every batch: ids and mask, (batch, pos)."""
    for batch in inputs["batches"]:
        longest = max(map(len, batch))
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in batch])
        ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in batch])
        yield ids, mask


def alone(inputs):
    """Every text as a batch of its own."""
    for batch in inputs["batches"]:
        for ids in batch:
            yield torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long)


def loaded_model(inputs, kind, took):
    """Load the weights in float32 with attention that shows its patterns."""
    import transformers

    with clock(took, "load"):
        model = getattr(transformers, kind).from_pretrained(
            inputs["folder"], attn_implementation="eager", dtype=torch.float32
        )
    return model.eval()


def counted(inputs, batches, patterns_of, took):
    """Time a pass; ``patterns_of`` gets ids and mask, and gives the pattern of each layer."""
    with torch.no_grad(), clock(took, "pass"):
        total = 0
        for ids, mask in batches(inputs):
            sums = [head_sums(pattern, mask) for pattern in patterns_of(ids, mask)]
            total = total + torch.stack(sums)
    return {"took": took, "statistics": means_of(inputs, total)}


# --- a script -------------------------------------------------------------------------------------


def _script(inputs, batches):
    took = {}
    model = loaded_model(inputs, "AutoModel", took)

    def patterns_of(ids, mask):
        outputs = model(ids, attention_mask=mask, output_attentions=True, use_cache=False)
        return outputs.attentions

    return counted(inputs, batches, patterns_of, took)


def script(inputs):
    """Ask transformers for the patterns of every batch."""
    return _script(inputs, padded)


def script_by_text(inputs):
    """Ask transformers for the patterns of one text after the other."""
    return _script(inputs, alone)


# --- TransformerLens ------------------------------------------------------------------------------


def _bridge(inputs, took):
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    model = loaded_model(inputs, "AutoModelForCausalLM", took)
    tokenizer = AutoTokenizer.from_pretrained(inputs["folder"])
    with clock(took, "wrap"):
        return TransformerBridge.boot_transformers(
            inputs["folder"], hf_model=model, tokenizer=tokenizer
        )


def transformerlens(inputs):
    """Run every batch with hooks that keep only the sums."""
    took = {}
    bridge = _bridge(inputs, took)
    n_layers = bridge.cfg.n_layers
    total = [0] * n_layers
    with torch.no_grad(), clock(took, "pass"):
        for ids, mask in padded(inputs):

            def add(pattern, hook, mask=mask):
                total[hook.layer()] = total[hook.layer()] + head_sums(pattern, mask)

            hooks = [(f"blocks.{layer}.attn.hook_pattern", add) for layer in range(n_layers)]
            bridge.run_with_hooks(
                ids,
                attention_mask=mask,
                fwd_hooks=hooks,
                return_type=None,
                logits_to_keep=1,
                use_cache=False,
            )
    return {"took": took, "statistics": means_of(inputs, torch.stack(total))}


def transformerlens_by_text(inputs):
    """Run one text after the other with its cache, as TransformerLens' introductions do."""
    took = {}
    bridge = _bridge(inputs, took)

    def patterns_of(ids, mask):
        _, cache = bridge.run_with_cache(ids)
        return (cache["pattern", layer] for layer in range(bridge.cfg.n_layers))

    return counted(inputs, alone, patterns_of, took)


# --- nnsight --------------------------------------------------------------------------------------


def nnsight(inputs):
    """Trace every batch, sum up inside the trace, and stop behind the last pattern."""
    from nnsight import NNsight, save

    took = {}
    model = NNsight(loaded_model(inputs, "AutoModel", took))
    total = 0
    with torch.no_grad(), clock(took, "pass"):
        for ids, mask in padded(inputs):
            with model.trace(ids, attention_mask=mask, use_cache=False) as tracer:
                sums = save([])
                for layer in model.layers:
                    sums.append(head_sums(layer.self_attn.output[1], mask))
                tracer.stop()
            total = total + torch.stack(sums)
    return {"took": took, "statistics": means_of(inputs, total)}


def nnsight_by_text(inputs):
    """Trace one text after the other, and save what its attention modules return."""
    from nnsight import NNsight, save

    took = {}
    model = NNsight(loaded_model(inputs, "AutoModel", took))

    def patterns_of(ids, mask):
        with model.trace(ids, attention_mask=mask):
            patterns = save([layer.self_attn.output[1] for layer in model.layers])
        return iter(patterns)

    return counted(inputs, alone, patterns_of, took)


# --- headscope ------------------------------------------------------------------------------------


def headscope(inputs):
    """Observe every batch through headscope's own attention, its certificate first."""
    import headscope as library
    from headscope.models.run.routing import Router, SiteObserver, routed
    from headscope.models.run.side_by_side import side_by_side
    from headscope.session.validate import require_valid

    took = {}
    with clock(took, "load"):
        loaded = library.load(inputs["folder"])
    with clock(took, "certificate"):
        require_valid(loaded, True)

    class Sums(SiteObserver):
        def start(self, mask):
            self.mask = mask
            self.sums = np.zeros((loaded.n_layers, len(STATISTICS), loaded.n_heads))

        def observe(self, site):
            sums = head_sums(site.pattern, self.mask[site.examples])
            self.sums[site.row, :, site.heads] += sums.numpy()

    @contextmanager
    def reader(replica):
        observer = Sums()
        with routed(replica.model, Router(replica.sites, [observer])) as router:

            def read(batch):
                observer.start(batch[1])
                router.run(lambda: replica.forward(*batch))
                return observer.sums

            yield read

    with clock(took, "pass"):
        total = sum(side_by_side(loaded, padded(inputs), reader))
    return {"took": took, "statistics": means_of(inputs, total)}


def classify(inputs):
    """Classify every head: all roles with their controls, and the certificate."""
    import headscope as library
    from headscope.data.corpus import as_corpus

    load_modules("headscope.analyses.classify.run", "scipy.stats", "wordfreq")
    took = {}
    with clock(took, "load"):
        loaded = library.load(inputs["folder"])
    with clock(took, "pass"):
        result = library.classify(loaded, as_corpus(inputs["treebank"]), limit=inputs["sentences"])
    statistics = [
        [float(head.positional.mass["-1"]) for head in result.heads],
        [float(head.first_token.weight) for head in result.heads],
        [float(head.entropy) for head in result.heads],
    ]
    n_layers = result.heads[-1].layer + 1
    by_layer = np.array(statistics).reshape(len(STATISTICS), n_layers, -1)
    return {"took": took, "statistics": by_layer.tolist()}


if __name__ == "__main__":
    run_job(globals())
