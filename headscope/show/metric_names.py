"""What metrics are called inside a sentence."""

#: What metrics are called in a sentence; one that is missing here is called by its key.
SHORT_NAMES = {
    "cosine": "the cosine",
    "loss": "the loss",
    "nll": "the loss at the next token",
    "next_token_accuracy": "accuracy of the next token",
    "spearman": "Spearman",
    "token_accuracy": "token accuracy",
    "ndcg_at_10": "nDCG@10",
    "kendall_tau": "Kendall's tau",
    "entity_f1": "the F1 of entities",
    "word_accuracy": "word accuracy",
    "answer_f1": "the F1 of answers",
}
