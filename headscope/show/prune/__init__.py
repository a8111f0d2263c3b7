"""How ``prune`` looks: tables, sentences, figures."""
