"""What ``prune`` and ``shrink`` share: words about a metric, times of two models, cards."""
