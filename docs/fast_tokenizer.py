"""Build tokenizer.json for ESM, whose tokenizer is not fast, and compare it with the slow class."""

import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import EsmTokenizer, PreTrainedTokenizerFast

folder = tempfile.mkdtemp()  # instead: the folder of your model, with its vocab.txt
letters = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO", "<mask>"]
with open(f"{folder}/vocab.txt", "w") as file:
    file.write("\n".join(letters))

slow = EsmTokenizer.from_pretrained(folder)
backend = Tokenizer(models.WordLevel(slow.get_vocab(), unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")]
)
backend.post_processor = processors.TemplateProcessing(
    single="<cls> $A <eos>",
    pair="<cls> $A <eos> $B <eos>",
    special_tokens=[("<cls>", slow.cls_token_id), ("<eos>", slow.eos_token_id)],
)
special = {name: f"<{name.removesuffix('_token')}>" for name in slow.special_tokens_map}
fast = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
fast.save_pretrained(folder)

for protein in ("MKTAYIAKQR", "M K T <mask> Y"):
    assert fast(protein)["input_ids"] == slow(protein)["input_ids"]
